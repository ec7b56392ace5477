"""Shares of pods in queues grow within the limits of their queues."""

from __future__ import annotations

from typing import Any

import pytest

from access.errors import Conflict
from allocations import ledger
from allocations.engine.resize import Amounts
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling.resizing import resize_share
from kube.keys import PREEMPTIBLE_LABEL, QUEUE_LABEL
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import Queues


def share(queues: Queues, name: str, fraction: str, *, preemptible: bool = True, queue: str = "research") -> None:
    """A pod of the queue that runs with a share."""
    labels = {QUEUE_LABEL: queue} | ({} if preemptible else {PREEMPTIBLE_LABEL: "false"})
    queues.world.server.add_pod(
        name,
        namespace=NAMESPACE,
        labels=labels,
        annotations={"gpu-fraction": fraction},
        spec={"schedulerName": "gpu-scheduler"},
    )
    queues.see(name)
    queues.settle()
    queues.bind(name)


def grow(queues: Queues, name: str, **amounts: Any) -> bool:
    allocation = Allocation.objects.get(pod_name=name, state="bound")
    world = queues.world.backends
    return resize_share(allocation.pk, Amounts(**amounts), backends=world, now=database_now(), actor="jane")


def core_of(name: str) -> int:
    return AllocationDevice.objects.get(allocation__pod_name=name, live=True).core_percent


@pytest.mark.parametrize(
    ("quota", "preemptible", "core", "want"),
    [
        pytest.param({"limit": 1}, True, 60, "", id="up to the limit"),
        pytest.param(
            {"limit": 1},
            True,
            61,
            "queue research holds 0.9 of its limit of 1 GPUs, and 0.11 are asked for",
            id="past it",
        ),
        pytest.param({"deserved": 1, "limit": 2}, False, 60, "", id="up to deserved, not preemptible"),
        pytest.param({"deserved": 1, "limit": 2}, False, 61, "of the 1 GPUs that it deserves", id="past deserved"),
        pytest.param({"deserved": 0, "limit": 2}, True, 60, "", id="past deserved, preemptible"),
        pytest.param({"limit": 1}, True, 10, "", id="less"),
    ],
)
def test_the_limits_of_a_queue(queues: Queues, quota: dict[str, Any], preemptible: bool, core: int, want: str) -> None:
    """SHARE-6b QUEUE-1 growth never passes what the queue lets in, and the refusal says which queue."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[quota])
    share(queues, "a", "0.5", preemptible=preemptible)
    share(queues, "b", "0.4", preemptible=preemptible)
    if want:
        with pytest.raises(Conflict, match=want):
            grow(queues, "a", core_percent=core)
        assert core_of("a") == 50
    else:
        assert grow(queues, "a", core_percent=core)
        assert core_of("a") == core


def test_an_ancestor_has_the_limit(queues: Queues) -> None:
    """SHARE-6b QUEUE-1 the limits of every queue above count too."""
    queues.world.node("n1", gpus=2)
    queues.queue("all", quotas=[{"limit": 1}])
    queues.queue("research", parent="all", quotas=[{"limit": 5}])
    queues.queue("other", parent="all", quotas=[{"limit": 5}])
    share(queues, "a", "0.5")
    share(queues, "b", "0.5", queue="other")
    with pytest.raises(Conflict, match="queue all holds 1 of its limit of 1 GPUs"):
        grow(queues, "a", core_percent=60)


def test_another_admission_comes_between(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-6b QUEUE-1 a decision that another admission overtook is made again: the two never pass a limit
    together.
    """
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"limit": 1}])
    share(queues, "a", "0.5")
    resize = ledger.resize
    late = ["b"]

    def overtaken(**more: Any) -> None:
        if late:
            share(queues, late.pop(), "0.4")
        resize(**more)

    monkeypatch.setattr(ledger, "resize", overtaken)
    with pytest.raises(Conflict, match="of its limit of 1 GPUs"):
        grow(queues, "a", core_percent=80)
    assert (core_of("a"), core_of("b")) == (50, 40)
    assert grow(queues, "a", core_percent=60)


def test_what_grew_counts(queues: Queues) -> None:
    """SHARE-6b QUEUE-1 the queue counts the new amounts for those who come after."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"limit": 1}])
    share(queues, "a", "0.5")
    assert grow(queues, "a", core_percent=80)
    queues.pod("b", queue="research")
    queues.settle()
    assert queues.why("b") == "queue research holds 0.8 of its limit of 1 GPUs, and 1 are asked for"
