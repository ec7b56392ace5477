"""The definitions of our kinds: installed, and applied only once they are served."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings

from gpuplane.start import definitions
from kube.shared import shared_cluster
from kube.watch import Stop
from tests.fakes.apiserver import ApiServer


@pytest.mark.parametrize("served", [pytest.param(True, id="served"), pytest.param(False, id="created, not served")])
def test_created_is_not_yet_served(
    served: bool, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLAIM-1 missing definitions are created; they count once the API server serves them."""
    monkeypatch.setattr(definitions, "SERVED_SECONDS", 1.0)
    with ApiServer(with_crds=False) as server:
        server.store.auto_establish = served
        settings.GPUPLANE_KUBECONFIG = str(server.kubeconfig(tmp_path / "kubeconfig"))
        missing = definitions.install(Stop())
        both = {
            "devices.scheduling.koordinator.sh",
            "gpuclaims.gpu.scheduling",
            "gpugangs.gpu.scheduling",
            "gpunodestatuses.gpu.scheduling",
            "gpuqueues.gpu.scheduling",
        }
        assert set(server.crds) == both
        assert missing == (set() if served else both)
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        assert cluster is not None
        cluster.close()


def test_no_definition_is_installed_without_a_cluster(settings: Settings) -> None:
    """CLAIM-1 there is nowhere to install them."""
    settings.GPUPLANE_KUBECONFIG = ""
    assert definitions.install(Stop()) == set()
