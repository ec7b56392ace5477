"""What the extender counts: each verb by outcome, refusals under the sorts of reason they gave, and labels that stay
few.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from django.db import OperationalError

from allocations.engine.decision import ReasonKind
from allocations.extender import counters, reasons, views
from allocations.extender.wire import BindArgs
from gpuplane.listeners import cluster
from nodes.models import Device
from tests.extender import bound, filter_answer, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.measured import growth

pytestmark = pytest.mark.django_db
ENDED = "gpuplane_extender_seconds_count"
REFUSED = "gpuplane_filter_refusals_total"


@pytest.fixture(autouse=True)
def fleet_of_two() -> None:
    NodeFactory(name="n1", gpus=2)
    NodeFactory(name="n2", gpus=1)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    GpuClaimFactory(name="half", spec={"devices": {"count": 1, "core": 50}})


def test_filter_and_bind_by_outcome() -> None:
    """VIEW-5 a verb's run stands under how it ended; bind's outcome is what kube-scheduler is told."""
    pod = pod_manifest("a", claim="one")
    with growth(ENDED) as grown:
        assert bound(pod, filtered(pod, ["n1"])) == ""
        assert bound(pod, "n2") != ""
        assert filtered(pod_manifest("b", claim="missing"), ["n1", "n2"]) is None
        assert filtered(pod_manifest("plain"), ["n1", "n2"]) == "n1"
        views.filter(b"{")
        views.bind(b"{")
    assert grown == {
        (ENDED, "answered", "filter"): 2,
        (ENDED, "refused", "filter"): 1,
        (ENDED, "error", "filter"): 1,
        (ENDED, "answered", "bind"): 1,
        (ENDED, "refused", "bind"): 1,
        (ENDED, "error", "bind"): 1,
    }


def test_the_ledger_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise OperationalError

    monkeypatch.setattr(views, "filter_pod", away)
    monkeypatch.setattr(views, "bind_pod", away)
    pod = pod_manifest("a", claim="one")
    with growth(ENDED, REFUSED) as grown:
        assert filtered(pod, ["n1"]) is None
        assert bound(pod, "n1") == reasons.LEDGER_AWAY.text
    assert grown == {
        (ENDED, "error", "filter"): 1,
        (ENDED, "error", "bind"): 1,
        (REFUSED, reasons.LEDGER_AWAY.kind): 1,
    }


@pytest.mark.parametrize("error", ["", "no"])
def test_the_listener_of_binds_counts_each_once(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    monkeypatch.setattr(views, "bind_pod", lambda _: error)

    async def in_thread(function: Any, /, *args: Any) -> Any:
        return function(*args)

    async def ask() -> bytes:
        body = msgspec.json.encode(BindArgs(PodName="a", PodNamespace="b", PodUID="u", Node="n1"))
        try:
            return await views.bind_on_loop(body, in_thread, in_thread)
        finally:
            views._binds.pop(asyncio.get_running_loop())

    with growth(ENDED) as grown:
        assert msgspec.json.decode(asyncio.run(ask())) == {"Error": error}
    assert grown == {(ENDED, "refused" if error else "answered", "bind"): 1}


def test_refusals_by_reason() -> None:
    """VIEW-5 one refusal counts once under each sort of reason that nodes were refused for."""
    Device.objects.filter(node__name="n2").update(healthy=False, revision=10**6)
    with growth(REFUSED) as grown:
        assert filtered(pod_manifest("a", claim="two"), ["n1"]) == "n1"
        assert filtered(pod_manifest("b", claim="one"), ["n1", "n2", "strange"]) is None
        assert filtered(pod_manifest("c", claim="half"), ["n1"]) is None
        assert filtered(pod_manifest("d", claim="missing"), ["n1"]) is None
        assert filtered(pod_manifest("e", claim="one", uid="x" * 999), ["n1"]) is None
    assert grown == {
        (REFUSED, ReasonKind.WHOLE_TAKEN): 1,
        (REFUSED, ReasonKind.SICK): 1,
        (REFUSED, reasons.NOT_REGISTERED.kind): 1,
        (REFUSED, ReasonKind.SHARE_TAKEN): 1,
        (REFUSED, "claim-missing"): 1,
        (REFUSED, reasons.malformed("").kind): 1,
    }


def test_a_pod_that_holds_devices_elsewhere() -> None:
    pod = pod_manifest("a", claim="one")
    assert bound(pod, filtered(pod, ["n1"])) == ""
    with growth(REFUSED) as grown:
        assert filter_answer(pod, ["n2"])["NodeNames"] == []
    assert grown == {(REFUSED, reasons.ELSEWHERE.kind): 1}


def test_reasons_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rules there should ever be, labels are bounded."""
    monkeypatch.setattr(counters, "_reasons", {f"rule-{number}" for number in range(counters.MOST_REASONS)})
    with growth(REFUSED) as grown:
        counters.refused(["rule-1", "one-too-many", "another"])
    assert grown == {(REFUSED, "rule-1"): 1, (REFUSED, counters.OTHER): 2}
    counters.REFUSALS.remove("rule-1")


def test_buckets_reach_as_far_as_anybody_waits() -> None:
    """From a millisecond, of which a filter takes a few, to the 60 s that kube-scheduler is told to wait."""
    assert (counters.BUCKETS[0], counters.BUCKETS[-1]) == (0.001, 60)
    assert list(counters.BUCKETS) == sorted(counters.BUCKETS)
    assert set(counters.BUCKETS) <= set(cluster.SECONDS._upper_bounds)
