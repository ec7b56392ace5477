"""Pods of queues and gangs are admitted by the loop, and by nothing else."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
from django.conf import settings

from access.actors import SYSTEM
from access.models import Team, TeamNamespace
from allocations.errors import MovedOn
from allocations.ledger.queue_fence import raise_fence
from allocations.models import Allocation, AllocationDevice, PodRefusal
from allocations.publish.pending_events import write as write_pending_events
from allocations.scheduling.queueing.loop import is_in_use
from allocations.scheduling.queueing.rounds import WRITE_EVENTS, Rounds
from claims.kinds import CLAIM, QUEUE
from claims.mirror import refresh
from claims.services import manifest_delete
from kube.keys import PREEMPTIBLE_LABEL, QUEUE_LABEL
from storage.clock import database_now
from tests.factories import DeviceFactory
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, NAMESPACE
from tests.integration.cluster.queueing.conftest import GATE, Queues


def test_a_pod_without_a_gate_is_refused_until_it_is_admitted(queues: Queues) -> None:
    """QUEUE-1 QUEUE-5 the gate is a saving, not the lock: filter refuses with the workload's reason."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"limit": 1}])
    queues.pod("a", queue="research", gated=False)
    queues.pod("b", queue="research", gated=False)
    assert queues.world.filter("a") is None
    assert queues.world.live() == 0
    queues.settle()
    assert queues.bind("a") == "n1"
    assert queues.world.filter("b") is None
    assert queues.why("b") == "queue research holds 1 of its limit of 1 GPUs"


def test_bind_holds_nothing_for_a_pod_that_was_not_admitted(queues: Queues) -> None:
    """QUEUE-1 nor does bind by itself."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"limit": 0}])
    queues.pod("a", queue="research", gated=False)
    assert "not admitted" in queues.world.bind("a", "n1")
    assert queues.world.live() == 0


def test_a_gate_goes_after_the_hold(queues: Queues) -> None:
    """QUEUE-1 CLAIM-8 the gates of all pods go once the ledger holds their devices, and each has 30 s from then."""
    queues.world.node("n1")
    queues.queue("research", namespaces=[NAMESPACE])
    queues.pod("a")
    queues.pod("b")
    queues.settle()
    assert {queues.gated("a"), queues.gated("b")} == {False}
    assert queues.world.live() == 2
    assert {queues.bind("a"), queues.bind("b")} == {"n1"}


def test_a_gang_is_whole_or_holds_nothing(queues: Queues) -> None:
    """CLAIM-8 two of three pods hold nothing; with the third all are held, on the fewest nodes."""
    for name in ("n1", "n2", "n3"):
        queues.world.node(name, gpus=4)
    queues.gang("ring", 3)
    for number in range(2):
        queues.pod(f"ring-{number}", gang="ring", gpus=2)
        queues.settle()
        assert queues.world.live() == 0
    assert queues.why("ring-0") == "gang ring: 2 of 3 pods are there"
    queues.pod("ring-2", gang="ring", gpus=2)
    queues.settle()
    assert len({queues.node_of(f"ring-{number}") for number in range(3)}) == 2
    assert [queues.bind(f"ring-{number}") for number in range(3)]


def test_two_gangs_that_each_need_all(queues: Queues) -> None:
    """CLAIM-8 one goes, the other waits whole: nothing is held in part."""
    queues.world.node("n1", gpus=4)
    for gang in ("one", "two"):
        queues.gang(gang, 4)
    for number in range(4):
        for gang in ("one", "two"):
            queues.pod(f"{gang}-{number}", gang=gang)
    queues.settle()
    held = {gang: sum(bool(queues.node_of(f"{gang}-{number}")) for number in range(4)) for gang in ("one", "two")}
    assert sorted(held.values()) == [0, 4]


def test_a_gate_that_stayed_is_taken_off_later(queues: Queues) -> None:
    """CLAIM-8 killed between hold and gates, or an API server that was away: the next round goes on."""
    queues.world.node("n1")
    queues.queue("research", namespaces=[NAMESPACE])
    queues.world.server.faults.append(Fault("PATCH", "pods", status=500, times=20))
    queues.pod("a")
    queues.round()
    assert queues.gated("a")
    assert queues.node_of("a") == "n1"
    queues.world.server.faults.clear()
    queues.round()
    assert not queues.gated("a")
    assert Allocation.objects.count() == 1


def test_another_worker_has_begun(queues: Queues) -> None:
    """CLAIM-8 the fencing number: whoever was overtaken holds nothing any more."""
    queues.world.node("n1")
    queues.queue("research", namespaces=[NAMESPACE])
    queues.pod("a")
    rounds = Rounds(queues.world.backends.cluster)
    raise_fence()
    with pytest.raises(MovedOn):
        rounds.run()
    assert queues.world.live() == 0


def test_another_node_is_offered(queues: Queues) -> None:
    """CLAIM-8 kube-scheduler offers other nodes only (CPU, volumes): the pod moves, within its gang's rack."""
    for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        queues.world.node(name, labels={"rack": rack})
    queues.world.reconcile()
    queues.gang("ring", 1, topology={"required": "rack"})
    queues.pod("a", gang="ring")
    queues.settle()
    first = queues.node_of("a")
    queues.world.server.remove_node(first)
    moved = queues.world.filter("a")
    racks = {"n1": "a", "n2": "a", "n3": "b"}
    assert (moved is None) if first == "n3" else (moved != first and racks[str(moved)] == racks[first])


def test_filter_keeps_to_the_models_that_were_admitted(queues: Queues) -> None:
    """QUEUE-1 on a node with GPUs of two models filter chooses none of the model whose limit is reached."""
    node = queues.world.node("n1", gpus=0)
    for minor, model in enumerate(("A100", "A100", "H100", "H100")):
        DeviceFactory(node=node, minor=minor, model=model)
    quotas = [{"models": ["A100"], "limit": 0}, {"models": ["H100"], "deserved": 2}]
    queues.queue("research", quotas=quotas)
    queues.pod("a", queue="research")
    queues.settle()
    assert queues.bind("a") == "n1"
    assert AllocationDevice.objects.filter(live=True).values_list("device__model", flat=True).get() == "H100"


def test_a_pod_with_gpus_of_two_quotas_keeps_them(queues: Queues) -> None:
    """QUEUE-1 on another node it could have more of the one model, and the queue pass its limit."""
    mixed = queues.world.node("n1", gpus=0)
    for minor, model in enumerate(("A100", "H100")):
        DeviceFactory(node=mixed, minor=minor, model=model)
    queues.queue("research", quotas=[{"models": [model], "limit": 2} for model in ("A100", "H100")])
    queues.pod("a", queue="research", gpus=2)
    queues.settle()
    queues.world.node("n2", gpus=3)
    queues.pod("b", queue="research")
    queues.settle()
    assert (queues.node_of("a"), queues.bind("b")) == ("n1", "n2")
    queues.world.server.remove_node("n1")  # kube-scheduler offers the other only
    assert queues.world.filter("a") is None
    assert queues.node_of("a") == "n1"


def test_labels_that_are_edited_after_the_admission(queues: Queues) -> None:
    """QUEUE-1 a hold that moves counts as it was admitted: nobody asked the queue that the label names now."""
    for name in ("n1", "n2"):
        queues.world.node(name, gpus=1)
    queues.queue("research")
    queues.queue("product", quotas=[{"limit": 0}])
    queues.pod("a", queue="research")
    queues.settle()
    first = queues.node_of("a")
    labels = queues.world.server.pods[NAMESPACE, "a"]["metadata"]["labels"]
    labels |= {QUEUE_LABEL: "product", PREEMPTIBLE_LABEL: "false"}
    queues.world.server.remove_node(first)
    assert queues.world.filter("a") not in {None, first}
    held = Allocation.objects.filter(state="held").values_list("queue", "preemptible")
    assert held.get() == ("research", True)


def test_a_claim_that_is_edited_after_the_admission(queues: Queues) -> None:
    """QUEUE-1 the pod is decided about again, by what it asks for now: it does not pass the limit of its queue."""
    queues.world.node("n1", gpus=4)
    queues.queue("research", namespaces=[NAMESPACE], quotas=[{"limit": 2}])
    queues.world.claim("devices", count=1)
    queues.world.pod("a", claim="devices", spec={**GATE, "schedulerName": "gpu-scheduler"})
    queues.see("a")
    queues.settle()
    assert queues.node_of("a") == "n1"
    edited(queues, count=4)
    assert queues.world.filter("a") is None
    queues.settle()
    assert (queues.node_of("a"), queues.why("a")) == (
        "",
        "queue research holds 0 of its limit of 2 GPUs, and 4 are asked for",
    )
    edited(queues, count=2)
    queues.see("a")
    queues.settle()
    assert queues.bind("a") == "n1"
    assert sorted(queues.world.used("n1")) == [0, 0, 100, 100]


def edited(queues: Queues, **devices: int) -> None:
    """Somebody edits claim `devices`; the watch brings it."""
    server, cluster = queues.world.server, queues.world.backends.cluster
    assert cluster is not None
    kind = server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
    server.store.patch(kind, NAMESPACE, "devices", {"spec": {"devices": devices}}, content_type=MERGE)
    refresh(CLAIM, cluster, namespace=NAMESPACE, name="devices", now=database_now())


def test_a_round_reads_no_volume_claims(queues: Queues) -> None:
    """QUEUE-1 LEASE-3 of 512 pods it would read one after the other; filter reads them, and prolongs the hold."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", namespaces=[NAMESPACE])
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "not-made-yet"}}]
    for name in ("a", "b"):
        queues.pod(name, volumes=volumes)
    queues.settle()
    assert (queues.node_of("a"), queues.node_of("b")) == ("n1", "n1")
    assert [one.path for one in queues.world.server.requests if "persistentvolumeclaims" in one.path] == []
    assert queues.world.filter("a") == "n1"
    held = Allocation.objects.get(pod_name="a")
    assert held.hold_until is not None
    assert (held.hold_until - held.created_at).total_seconds() == settings.GPUPLANE_LONG_HOLD_SECONDS


def test_pods_of_other_teams(queues: Queues) -> None:
    """QUEUE-1 a label that names another team's queue admits nobody, even where admission was away."""
    queues.world.node("n1")
    queues.queue("theirs", namespaces=["product"])
    queues.pod("a", queue="theirs")
    queues.settle()
    assert queues.world.live() == 0
    assert queues.why("a") == f"queue theirs is of other teams than namespace {NAMESPACE}"
    team = Team.objects.create(name="one")
    TeamNamespace.objects.create(team=team, namespace="product")
    TeamNamespace.objects.create(team=team, namespace=NAMESPACE)
    queues.settle()
    assert queues.node_of("a") == "n1"


def test_fair_shares_decide_who_comes_next(queues: Queues) -> None:
    """QUEUE-2 of two queues that deserve nothing each gets a half, whoever came first; alone one may have all."""
    queues.world.node("n1", gpus=4)
    for name in ("first", "second"):
        queues.queue(name)
    for number in range(4):
        queues.pod(f"f{number}", queue="first")
    for number in range(2):
        queues.pod(f"s{number}", queue="second")
    queues.settle()
    assert [bool(queues.node_of(f"f{number}")) for number in range(4)] == [True, True, False, False]
    assert [bool(queues.node_of(f"s{number}")) for number in range(2)] == [True, True]


def test_a_queue_may_use_what_others_leave(queues: Queues) -> None:
    """QUEUE-2 beyond what it deserves."""
    queues.world.node("n1", gpus=4)
    queues.queue("first", quotas=[{"deserved": 1}])
    queues.queue("second", quotas=[{"deserved": 3}])
    for number in range(4):
        queues.pod(f"f{number}", queue="first")
    queues.settle()
    assert all(queues.node_of(f"f{number}") for number in range(4))


def test_collection_leaves_what_is_admitted_and_gated(queues: Queues) -> None:
    """CLAIM-8 killed between hold and gates, and collection comes by: the gate goes nevertheless."""
    queues.world.node("n1")
    queues.queue("research", namespaces=[NAMESPACE])
    queues.world.server.faults.append(Fault("PATCH", "pods", status=500, times=20))
    queues.pod("a")
    queues.round()
    queues.world.server.faults.clear()
    queues.world.collect_garbage(later=10)
    successor = Queues(queues.world)
    successor.settle()
    assert not successor.gated("a")
    assert successor.bind("a") == "n1"
    successor.world.collect_garbage()
    assert not PodRefusal.objects.exists()


@pytest.mark.parametrize(
    ("labels", "meta", "spec"),
    [
        pytest.param({"gpu.scheduling/gang": "a/b"}, {}, {}, id="a gang with a slash"),
        pytest.param({"gpu.scheduling/gang": "a\x00b"}, {}, {}, id="a gang with NUL"),
        pytest.param({"gpu.scheduling/queue": "q" * 5000}, {}, {}, id="a long queue"),
        pytest.param({"gpu.scheduling/gang": "ring"}, {"creationTimestamp": "\x00"}, {}, id="an age with NUL"),
        pytest.param({"gpu.scheduling/gang": "ring"}, {"creationTimestamp": "9" * 900}, {}, id="a long age"),
        pytest.param({"gpu.scheduling/gang": "ring"}, {}, {"nodeSelector": {"a": "\x00"}}, id="a rule with NUL"),
        pytest.param({"gpu.scheduling/gang": "ring"}, {}, {"priority": 2**31 - 1}, id="the highest priority"),
    ],
)
def test_what_no_api_server_lets_through(
    queues: Queues, labels: dict[str, str], meta: dict[str, str], spec: dict[str, object]
) -> None:
    """QUEUE-1 an extender's client may send anything: filter answers, and the loop goes on."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"limit": 1}])
    uid = queues.pod("a", queue="research", gated=False)
    made = copy.deepcopy(queues.world.server.pods[NAMESPACE, "a"])
    made["metadata"] |= {"uid": f"{uid[:-4]}ffff", "name": "b", "labels": labels, **meta}
    made["spec"] |= spec
    queues.world.filter("b", pod=made)
    queues.settle()
    assert queues.node_of("a") == "n1"


def test_nothing_is_left_when_the_last_queue_goes(queues: Queues) -> None:
    """QUEUE-1 then there is nothing to decide about any more, and no round runs."""
    queues.world.node("n1")
    queues.queue("research")
    queues.run("a", queue="research")
    assert is_in_use()
    manifest_delete(QUEUE, namespace="", name="research", actor=SYSTEM, now=database_now())
    queues.round()
    assert not is_in_use()


def test_one_event_for_each_reason(queues: Queues) -> None:
    """QUEUE-5 an event for each reason, not for each number in it."""
    queues.world.node("n1")
    queues.queue("research", quotas=[{"limit": 3}])
    queues.run("first", queue="research", gpus=1)
    queues.pod("a", queue="research", gpus=3)
    queues.round()
    assert events_written(queues) == 1
    queues.run("second", queue="research", gpus=1)
    queues.round()
    assert "holds 2 of its limit of 3" in queues.why("a")
    assert events_written(queues) == 0
    (event,) = [one for one in queues.world.server.events.values() if one["reason"] == "WaitingForDevices"]
    assert event["message"].startswith("queue research holds 1 of its limit of 3 GPUs")


def test_the_event_follows_at_once(queues: Queues) -> None:
    """QUEUE-5 a round that finds a new reason has its event written half a second later, not once for each round."""
    queues.world.node("n1")
    queues.gang("ring", 3)
    queues.pod("a", gang="ring")
    queues.round()
    assert queues.sent == [WRITE_EVENTS]
    queues.pod("b", gang="ring")
    queues.round()
    assert queues.sent == [WRITE_EVENTS], "the first has not run yet"
    PodRefusal.objects.update(first_at=PodRefusal.objects.latest("first_at").first_at)  # however slow the machine is
    assert events_written(queues, seconds=0.3) == 0
    assert events_written(queues, seconds=0.6) == 2


def events_written(queues: Queues, *, seconds: float = 10) -> int:
    """How many, so long after the last pod began to wait."""
    cluster = queues.world.backends.cluster
    assert cluster is not None
    last = PodRefusal.objects.order_by("first_at").values_list("first_at", flat=True).last()
    assert last is not None
    return write_pending_events(cluster=cluster, now=last + timedelta(seconds=seconds))
