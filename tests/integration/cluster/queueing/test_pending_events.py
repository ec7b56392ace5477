"""Events on pods that wait in a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from allocations.publish.pending_events import write
from storage.clock import database_now
from tests.integration.cluster.queueing.conftest import Queues


def written(queues: Queues) -> int:
    """How many events were written now."""
    cluster = queues.world.backends.cluster
    assert cluster is not None
    return write(cluster=cluster, now=database_now() + timedelta(seconds=3))


def messages(queues: Queues, pod: str) -> list[str]:
    """The messages of the pod's events, the oldest first."""
    events: list[Any] = list(queues.world.server.events.values())
    return [one["message"] for one in events if one["involvedObject"]["name"] == pod]


def test_a_pod_that_moves_up_in_its_queue_gets_no_further_event(queues: Queues) -> None:
    """VIEW-3 its place is no other reason; the pod that is now the first has one."""
    queues.world.node("n1", gpus=1)
    queues.queue("research", queueingStrategy="StrictFIFO", quotas=[{"deserved": 1}])
    queues.run("runs", queue="research")
    for name in ("a", "b", "c", "d"):
        queues.pod(name, queue="research")
    queues.settle()
    assert [queues.why(name) for name in ("b", "c", "d")] == [
        "second in queue research",
        "third in queue research",
        "fourth in queue research",
    ]
    assert written(queues) == 4
    queues.world.remove("runs")
    queues.world.reconcile()
    queues.settle()
    assert queues.node_of("a") == "n1"
    assert [queues.why(name) for name in ("c", "d")] == ["second in queue research", "third in queue research"]
    assert written(queues) == 1
    assert len(messages(queues, "b")) == 2
    assert messages(queues, "c") == ["third in queue research"]
    assert messages(queues, "d") == ["fourth in queue research"]
