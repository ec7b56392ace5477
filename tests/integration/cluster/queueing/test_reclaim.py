"""Who gives way: through the Eviction API, planned whole, kept for the taker."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F

from allocations.errors import NewerDecision
from allocations.ledger.device_reservations import keep
from allocations.models import QueueFence, QueueReservation
from allocations.queue_overviews import queue_tree
from allocations.queue_statuses import queue_statuses
from allocations.scheduling import placement
from allocations.scheduling.queueing.loop import run_round
from allocations.scheduling.queueing.rounds import Rounds
from claims.models import GpuQueue
from kube.keys import QUEUE_LABEL
from nodes.models import Device, Node
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import GATE, Queues


def two_queues(queues: Queues, gpus: int = 4) -> None:
    """`research` deserves one half, `product` the other."""
    queues.world.node("n1", gpus=gpus)
    for name in ("research", "product"):
        queues.queue(name, quotas=[{"deserved": gpus / 2}])


def leaving(queues: Queues) -> list[str]:
    """Names of pods that were asked to go."""
    pods = queues.world.server.pods.items()
    return sorted(name for (_, name), pod in pods if "deletionTimestamp" in pod["metadata"])


def gone(queues: Queues, name: str) -> None:
    """The kubelet's last word on a pod, and a comparison."""
    queues.world.remove(name)
    queues.world.reconcile()


def test_what_was_borrowed_is_taken_back(queues: Queues) -> None:
    """QUEUE-3 the newest of the borrowers goes, its devices are kept for the taker, and the taker gets them."""
    two_queues(queues)
    for number in range(4):
        queues.run(f"r{number}", queue="research")
    queues.pod("p", queue="product")
    queues.round()
    (victim,) = leaving(queues)
    assert victim == "r3"
    assert queues.why("p") == "waits for 1 pod that is being evicted"
    (kept,) = Device.objects.exclude(kept_for="").values_list("kept_for", flat=True)
    assert kept == queues.world.server.pods[NAMESPACE, "p"]["metadata"]["uid"]

    # somebody outside the queues does not get it meanwhile
    gone(queues, victim)
    queues.world.claim("one", count=1)
    queues.world.pod("stranger", claim="one")
    assert queues.world.filter("stranger") is None

    queues.settle()
    assert queues.bind("p") == "n1"
    queues.round()
    assert not QueueReservation.objects.exists()


def test_new_devices_that_were_kept_for_the_taker_are_free_again(queues: Queues) -> None:
    """QUEUE-3 SCALE-4 a node was made for a pod that was in no queue then; in a queue it waits for others."""
    two_queues(queues)
    for number in range(4):
        queues.run(f"r{number}", queue="research")
    uid = queues.pod("p", queue="product")
    queues.world.node("n2", gpus=1)
    new = Device.objects.get(node__name="n2")
    now = database_now()
    until = now + timedelta(minutes=1)
    QueueReservation.objects.create(pod_uid=uid, priority=0, devices=[new.pk], growth=True, made_at=now, until=until)
    with transaction.atomic():
        keep([new.pk], now=now)
    new.refresh_from_db()
    assert new.kept_for == uid
    Node.objects.filter(name="n2").update(unschedulable=True)
    queues.round()
    assert queues.why("p") == "waits for 1 pod that is being evicted"
    new.refresh_from_db()
    assert new.kept_for == ""


def test_nobody_goes_twice(queues: Queues) -> None:
    """QUEUE-3 while the victim ends, further rounds evict nobody more."""
    two_queues(queues)
    for number in range(4):
        queues.run(f"r{number}", queue="research")
    queues.pod("p", queue="product")
    for _ in range(4):
        queues.round()
    assert leaving(queues) == ["r3"]
    assert len(queues.world.told("allocation.evicted")) == 1


def test_a_budget_is_respected(queues: Queues) -> None:
    """QUEUE-3 429: the plan is made again without that pod."""
    two_queues(queues)
    for number in range(4):
        queues.run(f"r{number}", queue="research")
    queues.world.server.store.blocked_evictions.add((NAMESPACE, "r3"))
    queues.pod("p", queue="product")
    queues.settle()
    assert leaving(queues) == ["r2"]


def test_nobody_goes_where_a_budget_forbids_one_of_them(queues: Queues) -> None:
    """QUEUE-3 two have to go, and only one may: both stay."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"deserved": 0}])
    queues.queue("product", quotas=[{"deserved": 2}])
    for number in range(2):
        queues.run(f"r{number}", queue="research")
    queues.world.server.store.blocked_evictions.add((NAMESPACE, "r0"))
    queues.pod("p", queue="product", gpus=2)
    for _ in range(3):
        queues.round()
    assert leaving(queues) == []
    assert not QueueReservation.objects.exists()


def test_a_hold_gives_way_at_once(queues: Queues) -> None:
    """QUEUE-3 a pod that was admitted and is not bound yet loses its hold, and waits again."""
    queues.world.node("n1", gpus=1)
    queues.queue("research", quotas=[{"deserved": 0}])
    queues.queue("product", quotas=[{"deserved": 1}])
    queues.pod("r", queue="research")
    queues.settle()
    assert queues.node_of("r") == "n1"
    queues.pod("p", queue="product")
    queues.settle()
    assert (queues.node_of("r"), queues.node_of("p")) == ("", "n1")
    assert queues.world.filter("r") is None


def test_the_worker_is_killed_between_eviction_and_admission(queues: Queues) -> None:
    """QUEUE-3 another worker goes on: nobody else is evicted, the taker gets what came free."""
    two_queues(queues)
    for number in range(4):
        queues.run(f"r{number}", queue="research")
    queues.pod("p", queue="product")
    queues.round()
    successor = Queues(queues.world)
    gone(queues, "r3")
    successor.settle()
    assert successor.bind("p") == "n1"
    assert leaving(queues) == []


def test_pods_outside_do_not_go_for_less_important_ones(queues: Queues) -> None:
    """QUEUE-3 kube-scheduler may evict a pod of a queue for a more important one outside; the queues do not evict that
    one again, so the two never do it in a circle.
    """
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"deserved": 2}])
    queues.world.claim("one", count=1)
    queues.world.place("important", claim="one", spec={"priority": 100})
    queues.world.place("equal", claim="one", spec={"priority": 0})
    queues.pod("a", queue="research")
    queues.pod("b", queue="research")
    queues.settle()
    assert leaving(queues) == ["equal"]
    assert queues.why("b")


def sharer(queues: Queues, name: str, claim: str) -> None:
    """A pod of queue `product` with a share, which the watch has seen."""
    labels = {QUEUE_LABEL: "product"}
    queues.world.pod(name, claim=claim, labels=labels, spec={**GATE, "schedulerName": "gpu-scheduler"})
    queues.see(name)


def one_borrower(queues: Queues) -> None:
    """Of three GPUs `research` has two, and borrows one; `pair` asks for half of two GPUs, `some` for a part of one."""
    queues.world.node("n1", gpus=3)
    queues.queue("research", quotas=[{"deserved": 1}])
    queues.queue("product", quotas=[{"deserved": 2}])
    queues.world.claim("pair", count=2, core=50)
    queues.world.claim("some", count=1, core=40)
    for number in range(2):
        queues.run(f"r{number}", queue="research")


@pytest.mark.parametrize("first", ["pair", "some"])
def test_what_is_left_of_a_device_that_is_kept(queues: Queues, first: str) -> None:
    """QUEUE-3 half of a free GPU is kept for a pod that waits for a second one: another of the queues gets of the rest,
    nobody else does.
    """
    one_borrower(queues)
    for name in (first, "some" if first == "pair" else "pair"):
        sharer(queues, name, name)
        queues.round()
    queues.settle()
    assert (leaving(queues), queues.why("pair")) == (["r1"], "waits for 1 pod that is being evicted")
    assert queues.bind("some") == "n1"
    uid = queues.world.server.pods[NAMESPACE, "pair"]["metadata"]["uid"]
    kept = Device.objects.exclude(kept_for="").order_by("minor")
    assert list(kept.values_list("kept_for", "core_used")) == [(uid, 100), (uid, 40)]
    queues.world.claim("little", count=1, core=5)
    queues.world.pod("stranger", claim="little")
    assert queues.world.filter("stranger") is None
    gone(queues, "r1")
    queues.settle()
    assert queues.bind("pair") == "n1"


def overtaken_round(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that holds nothing, since a REST claim was admitted while it decided."""

    def overtaken(*_: object) -> None:
        QueueFence.objects.update(admissions=F("admissions") + 1)
        raise NewerDecision

    with monkeypatch.context() as patch:
        patch.setattr(placement, "_hold_whole", overtaken)
        assert run_round(Rounds(queues.world.backends.cluster)) == 0
    queues._rounds = None  # the next run


def test_a_round_that_is_overtaken_loses_no_device_that_came_free(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QUEUE-3 the victim of a pod has gone, and a REST claim comes before the pod: nobody was evicted in vain."""
    two_queues(queues, gpus=2)
    for number in range(2):
        queues.run(f"r{number}", queue="research")
    queues.pod("p", queue="product")
    queues.settle()
    (victim,) = leaving(queues)
    gone(queues, victim)
    overtaken_round(queues, monkeypatch)
    queues.world.claim("little", count=1, core=5)
    queues.world.pod("stranger", claim="little")
    assert queues.world.filter("stranger") is None
    queues.settle()
    assert queues.bind("p") == "n1"


def test_a_round_that_is_overtaken_keeps_devices_for_who_waits(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-3 a device that was open to one who goes now is kept again where a REST claim came before it."""
    one_borrower(queues)
    sharer(queues, "pair", "pair")
    queues.settle()
    sharer(queues, "some", "some")
    overtaken_round(queues, monkeypatch)
    uid = queues.world.server.pods[NAMESPACE, "pair"]["metadata"]["uid"]
    assert list(Device.objects.exclude(kept_for="").values_list("kept_for", flat=True)) == [uid, uid]
    queues.world.claim("little", count=1, core=5)
    queues.world.pod("stranger", claim="little")
    assert queues.world.filter("stranger") is None


def test_a_pod_that_is_being_deleted_is_waited_for(queues: Queues) -> None:
    """QUEUE-3 pods already leaving count as coming free before anybody is evicted."""
    two_queues(queues)
    for number in range(4):
        queues.run(f"r{number}", queue="research")
    queues.world.server.store.evict(NAMESPACE, "r0", {})
    queues.world.reconcile()
    queues.pod("p", queue="product")
    queues.round()
    assert leaving(queues) == ["r0"]
    assert queues.why("p") == "waits for 1 pod that is being evicted"


def test_who_borrows_from_whom(queues: Queues) -> None:
    """QUEUE-2 QUEUE-5 the queue's status says that it borrows, and its page of whom."""
    two_queues(queues)
    for number in range(3):
        queues.run(f"r{number}", queue="research")
    queues.round()
    rows = {row.name: row for row in GpuQueue.objects.all()}
    statuses = queue_statuses(list(rows.values()))
    assert [one["type"] for one in statuses[rows["product"].pk]["conditions"]] == ["Valid"]
    _, condition = statuses[rows["research"].pk]["conditions"]
    assert condition["message"] == "holds 1 GPUs more than it deserves"
    bars = {row.name: row.quotas[0] for row in queue_tree() if row.quotas}
    assert (bars["research"].borrowed, bars["research"].lenders) == (1, ["product"])
    assert bars["product"].lenders == ()
