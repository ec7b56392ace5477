"""Finding a pod's claim: the mirror first, the API server for what is too new to be mirrored."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from claims import lookup
from claims.dialects.claim_manifest import ClaimSpec
from claims.dialects.request import Refusal
from claims.lookup import ClaimFinder
from claims.models import GpuClaim
from kube.errors import NotFoundInCluster, Unreachable
from tests.factories import GpuClaimFactory

pytestmark = pytest.mark.django_db


def test_one_query_and_the_rows_id(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    """CLAIM-2 the allocation points to the claim that was found."""
    claim = GpuClaimFactory(name="one", spec={"devices": {"count": 2}})
    finder = ClaimFinder()
    with django_assert_num_queries(1):
        found = finder("research", "one")
    assert isinstance(found, ClaimSpec)
    assert (found.devices.count, finder.find("research", "one").claim_id) == (2, claim.pk)


def test_only_in_the_namespace_of_the_pod() -> None:
    """CLAIM-3 a claim of another namespace is none."""
    GpuClaimFactory(name="one", namespace="elsewhere")
    finder = ClaimFinder()
    assert finder("research", "one") is None
    assert finder.find("research", "one").claim_id is None


def test_a_changed_claim_is_read_anew() -> None:
    """CLAIM-1 specs are parsed once each, and never served after they changed."""
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    ClaimFinder()("research", "one")
    GpuClaim.objects.update(spec={"devices": {"count": 3}})
    found = ClaimFinder()("research", "one")
    assert isinstance(found, ClaimSpec)
    assert found.devices.count == 3


@pytest.mark.parametrize(
    "spec",
    [{}, [], {"devices": None}, "x", {"devices": {"count": -1}}, {"devices": {"count": 1}, "x": 1}],
    ids=["empty", "a list", "devices null", "a text", "a negative count", "an unknown field"],
)
def test_a_malformed_one_is_a_refusal(spec: Any) -> None:
    """CLAIM-3 with the claim's name and the field."""
    GpuClaimFactory(name="odd", spec=spec)
    found = ClaimFinder()("research", "odd")
    assert isinstance(found, Refusal)
    assert found.rule == "claim-malformed"
    assert found.reason.startswith("GpuClaim odd is malformed: ")
    assert found.field.startswith("spec")


class _Cluster:
    """Stands for a connection that nothing is asked of."""


@pytest.fixture
def with_cluster(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.GPUPLANE_KUBECONFIG = "/some/kubeconfig"
    monkeypatch.setattr(lookup, "shared_cluster", lambda _: _Cluster())


@pytest.mark.usefixtures("with_cluster")
def test_the_api_server_is_asked_for_what_is_not_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-3 missing there too: it does not exist; no answer: that is said, not that it is missing."""

    def missing(*_: object, **__: object) -> None:
        raise NotFoundInCluster("not found")

    def away(*_: object, **__: object) -> None:
        raise Unreachable("no route")

    monkeypatch.setattr("kube.crds.get", missing)
    assert ClaimFinder()("research", "one") is None
    monkeypatch.setattr("kube.crds.get", away)
    found = ClaimFinder()("research", "one")
    assert isinstance(found, Refusal)
    assert found.rule == "claim-unread"
    GpuClaimFactory(name="one")
    assert isinstance(ClaimFinder()("research", "one"), ClaimSpec)
