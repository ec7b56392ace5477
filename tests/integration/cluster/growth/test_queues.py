"""Growth for pods that queues admit: gates hide them from Karpenter, and quotas come before nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from allocations.scheduling.queueing import round_input
from allocations.scheduling.queueing.waiting_rows import Holder, read_holders
from autoscaling.models import PodGrowth
from autoscaling.rounds.round_input import GrowthInputReader, read_waiting
from claims.queues import DIRECTORY
from storage.clock import database_now
from tests.integration.cluster.growth.conftest import Growing
from tests.integration.cluster.queueing.conftest import Queues


@pytest.fixture
def queues(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queues]:
    """The queues of the same world."""
    DIRECTORY.forget()
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda _task, **_: None)
    yield Queues(growing.world)
    DIRECTORY.forget()


def test_a_gang_grows_whole(growing: Growing, queues: Queues) -> None:
    """SCALE-4 SCALE-5 Gated pods by nvidia.com/gpu have triggers: two nodes for three pods of four, none for two."""
    growing.karpenter.pool()
    queues.gang("ring", 3)
    for number in range(2):
        queues.pod(f"r-{number}", gpus=4, gang="ring")
    queues.settle()
    growing.round(2)
    assert growing.triggers == []
    queues.pod("r-2", gpus=4, gang="ring")
    queues.settle()
    growing.wait(6)
    growing.round(2)
    assert sorted(
        int(one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) for one in growing.triggers
    ) == [4, 8]
    names = [growing.karpenter.nominate(one) for one in growing.triggers]
    growing.round()
    for name in names:
        growing.karpenter.ready(name)
    growing.round()
    for name in names:
        growing.inventory(name)
    growing.round()
    queues.settle()
    assert {queues.node_of(f"r-{number}") for number in range(3)} == set(names)
    assert set(growing.states) == {"served"}


@pytest.mark.parametrize(
    ("nodes", "most"),
    [pytest.param(1, round_input.MOST, id="few wait"), pytest.param(2, 1, id="more wait than a round admits")],
)
def test_a_limit_comes_before_nodes(
    growing: Growing, queues: Queues, monkeypatch: pytest.MonkeyPatch, nodes: int, most: int
) -> None:
    """SCALE-1 Nodes for what the queue's limit lets in, and none for the rest, which is told so."""
    monkeypatch.setattr(round_input, "MOST", most)
    growing.karpenter.pool()
    queues.queue("q", quotas=[{"deserved": 0, "limit": 8 * nodes}])
    for number in range(nodes + 2):
        queues.pod(f"p-{number}", gpus=8, queue="q")
    queues.settle()
    growing.round(2)
    assert len(growing.triggers) == nodes
    told = list(PodGrowth.objects.filter(pool="").values_list("reason", flat=True))
    assert told == [f"queue q holds {8 * nodes} of its limit of {8 * nodes} GPUs"] * 2


def test_a_node_that_comes_while_the_input_is_read(
    growing: Growing, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCALE-1 Rows of nodes mean the same nodes throughout one plan."""
    queues.world.node("n5", gpus=1)
    queues.queue("q")
    queues.pod("p", gpus=8, queue="q")
    queues.settle()
    cluster = queues.world.backends.cluster
    assert cluster is not None
    now = database_now() + timedelta(minutes=1)
    waiters = read_waiting(cluster, now).waiters

    def slowly() -> list[Holder]:
        queues.world.node("n1", gpus=1)
        return read_holders()

    monkeypatch.setattr(round_input, "read_holders", slowly)
    taken = GrowthInputReader().take(waiters, now)
    assert taken.queues is not None
    assert taken.queues.snapshot.node_names == taken.inputs.snapshot.node_names
    assert len(taken.queues.labels) == len(taken.queues.snapshot.node_names)
