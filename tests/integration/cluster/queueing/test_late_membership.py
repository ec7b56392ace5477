"""Pods that filter refused before they were pods of a queue or of a gang: their queue or their claim came later."""

from __future__ import annotations

from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import Queues
from tests.integration.cluster.queueing.test_reclaim import gone

OURS = {"schedulerName": "gpu-scheduler"}


def looked_at(queues: Queues, *names: str) -> None:
    """A comparison, a round of the queues, and kube-scheduler's next question."""
    for _ in range(3):
        queues.world.reconcile()
        queues.round()
        for name in names:
            queues.world.filter(name)


def test_a_queue_comes_for_a_refused_pod(queues: Queues) -> None:
    """QUEUE-1 it takes its turn like a pod that nobody had asked about."""
    queues.world.node("n1", gpus=2)
    queues.pod("runs", gpus=2, gated=False)
    assert queues.bind("runs") == "n1"
    queues.pod("refused", gated=False)
    queues.pod("never-asked", gated=False)
    assert queues.world.filter("refused") is None
    queues.queue("research", namespaces=[NAMESPACE])
    gone(queues, "runs")
    looked_at(queues, "refused")
    assert [queues.node_of(name) for name in ("refused", "never-asked")] == ["n1", "n1"]


def test_a_claim_comes_for_a_refused_pod_of_a_queue(queues: Queues) -> None:
    """QUEUE-1 the namespace is in a queue all along."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", namespaces=[NAMESPACE])
    queues.world.pod("pod", claim="late", spec=OURS)
    queues.see("pod")
    assert queues.world.filter("pod") is None
    queues.world.claim("late")
    looked_at(queues, "pod")
    assert queues.node_of("pod") == "n1"


def test_a_claim_of_a_gang_comes_for_refused_pods(queues: Queues) -> None:
    """CLAIM-8 there is no queue, and the webhook could not know of the gang, so the pods have no gate."""
    queues.world.node("n1", gpus=2)
    queues.gang("ring", 2)
    for name in ("a", "b"):
        queues.world.pod(name, claim="late", spec=OURS)
    assert queues.world.filter("a") is None
    queues.world.server.add_gpuclaim("late", {"devices": {"count": 1}, "gangRef": "ring"}, namespace=NAMESPACE)
    looked_at(queues, "a", "b")
    assert [queues.node_of(name) for name in ("a", "b")] == ["n1", "n1"]


def test_a_claim_that_does_not_come_is_not_asked_for_again(queues: Queues) -> None:
    """CLAIM-3 a comparison waits for the watch: claims that thousands of pods name in vain cost it nothing."""
    queues.world.node("n1", gpus=2)
    queues.world.pod("pod", claim="never", spec=OURS)
    assert queues.world.filter("pod") is None
    read = sum("/gpuclaims/never" in one.path for one in queues.world.server.requests)
    queues.world.reconcile()
    assert sum("/gpuclaims/never" in one.path for one in queues.world.server.requests) == read > 0
