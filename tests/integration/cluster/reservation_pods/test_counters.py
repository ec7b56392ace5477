"""What reservation pods count, read back from the registry after real binds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pytest_django import Settings

from allocations.counters import ReservationFailure
from tests.fakes.apiserver import Fault
from tests.integration.cluster.reservation_pods.conftest import Shares
from tests.integration.cluster.reservation_pods.test_binds import release_connection_after
from tests.measured import growth

FAILED, TOOK = "gpuplane_reservations_failed_total", "gpuplane_reservation_seconds_count"


def test_a_group_counts_once_however_many_share_it(shares: Shares) -> None:
    """VIEW-5 SHARE-5 the time until a GPU was known is measured once a group."""
    with growth(FAILED, TOOK) as grown:
        assert [shares.place(name) for name in ("one", "two", "three")] == ["", "", ""]
    assert grown == {(TOOK,): 2}


@pytest.mark.parametrize(
    ("told", "want"),
    [
        pytest.param("GPU-n1-9", ReservationFailure.OTHER_GPU, id="a GPU that no node has"),
        pytest.param("", ReservationFailure.TIMED_OUT, id="nothing"),
    ],
)
def test_a_failure_counts_by_its_kind(shares: Shares, settings: Settings, told: str, want: ReservationFailure) -> None:
    """VIEW-5 SHARE-5 a reservation pod in vain counts once, under what failed."""
    settings.GPUPLANE_RESERVATION_SECONDS = 1
    shares.kubelets.silent = True
    shares.pod("train")
    with growth(FAILED, TOOK) as grown, ThreadPoolExecutor(1) as threads:
        bind = threads.submit(release_connection_after(shares.bind), "train")
        name = shares.kubelets.next_reservation()
        if told:
            shares.kubelets.tell(name, told)
        assert bind.result(20) != ""
    assert grown == {(FAILED, want): 1}


def test_a_pod_that_the_kubelet_refuses(shares: Shares) -> None:
    """VIEW-5 SHARE-5 the kubelet has no GPU left that the ledger counts as free."""
    shares.kubelets.gpus["n1"] = []
    with growth(FAILED, TOOK) as grown:
        assert "UnexpectedAdmissionError" in shares.place("train")
    assert grown == {(FAILED, ReservationFailure.POD_ENDED): 1}


def test_a_pod_that_the_api_server_refuses(shares: Shares) -> None:
    """VIEW-5 SHARE-5 a quota of the namespace, say."""
    shares.world.server.faults.append(Fault("POST", ".*/gpuplane-reservation/pods", status=403, times=10))
    with growth(FAILED, TOOK) as grown:
        assert "refused the reservation pod" in shares.place("train")
    assert grown == {(FAILED, ReservationFailure.REFUSED): 1}
