"""Bindings that the API server applies long after their sender got no answer: no device is given twice, and none is
lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.conf import settings

from allocations import ledger
from allocations.choices import State
from allocations.models import Allocation
from kube.keys import ALLOCATED, ATTEMPT
from storage.clock import database_now
from tests.fakes.apikinds import LEASES, PODS
from tests.fakes.apiserver import Fault
from tests.fakes.late import Late
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World

BINDING = r"/pods/train/binding$"


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind gives up sending after half a second."""
    monkeypatch.setattr("allocations.scheduling.limits.BIND_DEADLINE", timedelta(seconds=0.5))


@pytest.fixture
def world(world: World) -> World:
    """With the namespace of the leases, so that binds need nothing but their leases and the Binding."""
    world.server.add_namespace(settings.GPUPLANE_NAMESPACE)
    return world


@pytest.fixture
def late() -> Iterator[Late]:
    held = Late()
    yield held
    held.drop()


def bindings_sent(world: World) -> int:
    return sum(one.method == "POST" and one.path.endswith("/pods/train/binding") for one in world.server.requests)


def given_twice(world: World) -> list[str]:
    """Devices that more than one bound pod names in its annotation."""
    named = [
        f"{pod['spec']['nodeName']}:{minor}"
        for pod in world.server.pods.values()
        if pod["spec"].get("nodeName")
        for minor in pod["metadata"]["annotations"][ALLOCATED].partition(":")[2].split(",")
    ]
    return sorted({one for one in named if named.count(one) > 1})


def lose_the_binding(world: World, late: Late, *, gpus: int = 2) -> None:
    """Pod `train` takes all GPUs of `n1`; the API server holds its Binding, and takes no other one in time."""
    world.node("n1", gpus=gpus)
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.server.faults += [
        Fault("POST", BINDING, late=late, drop="before"),
        Fault("POST", BINDING, drop="before", times=500),
    ]
    assert world.bind("train", "n1") != ""
    late.wait_held()
    world.server.faults.clear()
    assert world.states("train") == ["reserved"]


def place_urgent(world: World) -> str | None:
    """The node that another pod gets, which would take the same devices."""
    world.pod("urgent")
    node = world.filter("urgent")
    if node is not None:
        assert world.bind("urgent", node) == ""
    return node


def test_applied_after_collection(world: World, late: Late) -> None:
    """LEASE-2 LEASE-3 collection finds a reservation whose Binding may still be applied: it sends that Binding again
    and gives nothing away.
    """
    lose_the_binding(world, late)

    world.collect_garbage(later=60)
    urgent = place_urgent(world)
    late.release()

    assert given_twice(world) == []
    assert urgent is None
    assert world.states("train") == ["bound"]
    assert world.used("n1") == [100, 100]
    assert len(world.leases()) == 2


def test_no_binding_is_answered_for_long(world: World, late: Late) -> None:
    """LEASE-2 LEASE-3 as long as nobody knows what became of a Binding the devices count as used, however often
    collection comes by.
    """
    lose_the_binding(world, late)
    world.server.faults.append(Fault("POST", BINDING, drop="before", times=500))

    for later in (60, 120, 3_600, 86_400):
        world.collect_garbage(later=later)
        assert world.states("train") == ["reserved"]
    assert place_urgent(world) is None

    late.release()
    world.collect_garbage(later=90_000)
    assert world.states("train") == ["bound"]
    assert given_twice(world) == []


def test_collection_sends_however_slow_the_api_server_is(
    world: World, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-3 the pod and its leases take longer to read than collection sends for: the Binding is sent all the
    same.
    """
    monkeypatch.setattr("allocations.scheduling.limits.COLLECTING_DEADLINE", timedelta(seconds=0.5))
    lose_the_binding(world, late)
    world.server.faults.append(Fault("POST", r"/leases$", late=Late(seconds=0.6)))

    world.collect_garbage(later=60)

    assert world.states("train") == ["bound"]


def test_a_turn_of_collection_has_an_end(world: World, late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 while the API server hangs a turn does not wait for each reservation; those it did not come to are the
    first of the next.
    """
    monkeypatch.setattr("allocations.reconcile.garbage_collection.KIND_SECONDS", 0.0)
    lose_the_binding(world, late)
    stale = Allocation.objects.get()
    assert stale.reserved_at is not None
    Allocation.objects.create(
        state=State.RESERVED,
        namespace=NAMESPACE,
        pod_name="another",
        pod_uid="another",
        holder="another",
        node=stale.node,
        dialect=stale.dialect,
        request=stale.request,
        reserved_at=stale.reserved_at + timedelta(seconds=1),
        created_at=stale.created_at,
        changed_at=stale.changed_at,
    )
    world.server.faults.append(Fault("GET", r"/pods/", drop="before", times=500))
    world.collect_garbage(later=60)
    assert not any(one.path.endswith("/pods/another") for one in world.server.requests)

    world.server.faults.clear()
    world.collect_garbage(later=61)

    assert world.states("another") == ["failed"]  # there is no such pod
    assert world.states("train") == ["reserved"]


@pytest.mark.parametrize("bind_next", [True, False], ids=["the next bind", "collection"])
@pytest.mark.parametrize("refusal", ["lease denied", "a stranger's lease", "Binding denied"])
def test_an_attempt_that_cannot_go_on_shuts_the_late_binding_out(
    world: World, late: Late, refusal: str, bind_next: bool
) -> None:
    """LEASE-1 LEASE-2 LEASE-3 before a reservation is given up, the pod is written to, so that a Binding sent earlier
    fails when it comes.
    """
    lose_the_binding(world, late, gpus=4)
    if refusal == "a stranger's lease":
        world.server.store.delete(LEASES, "gpuplane-system", "gpu-n1-1", {})
        world.server.add_lease("gpu-n1-1", "somebody-else")
    else:
        what = r"/leases$" if refusal == "lease denied" else BINDING
        world.server.faults.append(Fault("POST", what, status=403, reason="Forbidden"))

    told = world.bind("train", "n1") if bind_next else str(world.collect_garbage(later=60).reservations)
    again = refusal == "a stranger's lease" and bind_next  # planned again, on others of the node
    assert world.states("train") == (["released", "bound"] if again else ["released" if "str" in refusal else "failed"])
    assert told == ("" if again else told)
    before = dict(world.server.pods[NAMESPACE, "train"]["spec"])
    late.release()

    assert world.server.pods[NAMESPACE, "train"]["spec"] == before
    assert ("nodeName" in before) is again
    assert given_twice(world) == []


def test_what_shuts_a_binding_out_is_not_applied_late_itself(world: World, late: Late) -> None:
    """LEASE-1 LEASE-2 LEASE-3 the write that shut a Binding out comes a second time, long after the pod was bound by
    its next allocation: it is refused.
    """
    lose_the_binding(world, late, gpus=4)
    world.server.store.delete(LEASES, "gpuplane-system", "gpu-n1-1", {})
    world.server.add_lease("gpu-n1-1", "somebody-else")
    mark, second = Late(), Late()
    world.server.faults += [
        Fault("PATCH", r"/pods/train$", late=mark, drop="before"),
        Fault("POST", BINDING, late=second, drop="before"),
        Fault("POST", BINDING, drop="before", times=500),
    ]
    assert world.bind("train", "n1") != ""
    assert world.states("train") == ["released", "reserved"]
    world.server.faults.clear()
    second.release()
    mark.release()

    assert (second.outcomes, mark.outcomes) == ([201], [409])
    world.collect_garbage(later=60)
    assert world.states("train") == ["released", "bound"]
    place_urgent(world)
    assert given_twice(world) == []


def test_the_answer_of_what_shuts_a_binding_out_is_lost(world: World, late: Late) -> None:
    """LEASE-3 the pod was written to, and nobody heard of it: the pod itself tells, and the reservation is given up."""
    lose_the_binding(world, late)
    world.server.faults += [
        Fault("POST", r"/leases$", status=403, reason="Forbidden"),
        Fault("PATCH", r"/pods/train$", drop="after"),
    ]
    world.collect_garbage(later=60)
    assert world.states("train") == ["failed"]
    late.release()
    assert late.outcomes == [409]


@pytest.mark.parametrize("fault", ["denied", "away"])
def test_what_cannot_be_shut_out_is_not_given_up(world: World, late: Late, fault: str) -> None:
    """LEASE-2 LEASE-3 where the pod cannot be written to either, the reservation stays until somebody knows."""
    lose_the_binding(world, late)
    refusals = {"status": 403, "reason": "Forbidden"} if fault == "denied" else {"drop": "before"}
    world.server.faults += [
        Fault("POST", r"/leases$", status=403, reason="Forbidden", times=4),  # two leases, twice
        Fault("PATCH", r"/pods/train$", times=500, **refusals),
    ]
    assert world.bind("train", "n1") != ""
    assert world.states("train") == ["reserved"]
    world.collect_garbage(later=60)
    assert world.states("train") == ["reserved"]
    assert place_urgent(world) is None

    late.release()
    world.server.faults.clear()
    world.collect_garbage(later=120)
    assert world.states("train") == ["bound"]
    assert given_twice(world) == []


def test_a_binding_without_the_pods_version_cannot_be_shut_out(world: World, late: Late) -> None:
    """LEASE-2 LEASE-3 a scheduler that told no resourceVersion: nothing keeps its Binding from being applied late, so
    nothing is given up.
    """
    world.node("n1", gpus=2)
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    Allocation.objects.update(attempt_version="")
    world.server.faults += [
        Fault("POST", BINDING, late=late, drop="before"),
        Fault("POST", BINDING, drop="before", times=500),
    ]
    assert world.bind("train", "n1") != ""
    world.server.faults[:] = [Fault("POST", r"/leases$", status=403, reason="Forbidden", times=50)]

    assert "applied" in world.bind("train", "n1")
    world.collect_garbage(later=60)

    assert world.states("train") == ["reserved"]
    late.release()
    world.collect_garbage(later=120)
    assert world.states("train") == ["bound"]


def test_a_pod_that_goes_ends_it(world: World, late: Late) -> None:
    """LEASE-3 LEASE-4 the pod is gone: no Binding can be applied any more, and everything is given back."""
    lose_the_binding(world, late)
    world.server.faults.append(Fault("POST", BINDING, drop="before", times=500))
    world.collect_garbage(later=60)
    assert world.states("train") == ["reserved"]
    world.remove("train")
    world.collect_garbage(later=120)
    assert world.states("train") == ["failed"]
    assert world.leases() == {}
    late.release()
    assert world.used("n1") == [0, 0]


def test_another_servers_404_says_nothing_of_the_pod(world: World, late: Late) -> None:
    """LEASE-2 LEASE-3 a proxy that has lost its API server answers 404 itself: that is no word that the pod is gone."""
    lose_the_binding(world, late)
    world.server.faults.append(Fault("GET", r"/pods/train$", status=404, reason="", message="default backend"))
    world.collect_garbage(later=60)
    assert world.states("train") == ["reserved"]
    late.release()
    world.collect_garbage(later=120)
    assert world.states("train") == ["bound"]


@pytest.mark.parametrize("shared", [False, True], ids=["whole devices", "shares"])
def test_a_sender_that_was_paused_sends_nothing_more(
    world: World, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-3 a process stands still between reservation and Binding: once collection has taken the reservation up it
    sends nothing that is not its own.
    """
    monkeypatch.setattr("allocations.scheduling.limits.LOOK_SECONDS", 0.0)  # any time at all is a pause
    world.node("n1", gpus=2)
    world.claim("one", count=1, **({"core": 50} if shared else {}))
    uid = world.pod("train", claim="one")
    assert world.filter("train") == "n1"
    paused = Late()
    world.server.faults.append(Fault("POST", r"/leases$", late=paused))

    with ThreadPoolExecutor(1) as threads:
        binding: Future[str] = threads.submit(world.bind, "train", "n1", uid=uid)
        paused.wait_held()
        row = Allocation.objects.get()
        number = ledger.take_up(allocation_id=row.pk, attempt=row.bind_attempt, now=database_now())
        assert number == 2
        world.remove("train")
        paused.release()
        answer = binding.result(30)

    assert answer != ""
    assert bindings_sent(world) == 0
    world.collect_garbage(later=60)
    assert world.states("train") == ["failed"]
    assert world.leases() == {}


def test_who_was_overtaken_undoes_nothing(world: World, late: Late) -> None:
    """LEASE-2 an attempt whose Binding is refused while another has taken the reservation up leaves it to that one."""
    lose_the_binding(world, late)
    row = Allocation.objects.get()
    stale = row.bind_attempt
    assert ledger.take_up(allocation_id=row.pk, attempt=stale, now=database_now()) == stale + 1
    assert ledger.take_up(allocation_id=row.pk, attempt=stale, now=database_now()) is None
    begun = ledger.begin_release(
        allocation_id=row.pk,
        sources=(State.RESERVED,),
        outcome=State.FAILED,
        reason="test",
        now=database_now(),
        actor="test",
        bind_attempt=stale,
    )
    assert not begun
    assert world.states("train") == ["reserved"]


def test_two_take_a_reservation_up_at_once(world: World, late: Late) -> None:
    """LEASE-3 of the next bind and collection, which come at the same moment, either finishes it; the other does no
    harm.
    """
    lose_the_binding(world, late)
    both = threading.Barrier(2)

    def bind() -> str:
        both.wait()
        return world.bind("train", "n1")

    def collect() -> None:
        both.wait()
        world.collect_garbage(later=60)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(bind), threads.submit(collect)
        first.result(30)
        second.result(30)
    late.release()

    assert world.states("train") == ["bound"]
    assert given_twice(world) == []


def test_a_pod_that_changed_since_filter_is_bound_all_the_same(world: World) -> None:
    """LEASE-3 the Binding carries the pod's resourceVersion; where the pod has changed meanwhile it is read and the
    Binding sent again.
    """
    world.node("n1", gpus=2)
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.annotate("train", note="changed")

    assert world.bind("train", "n1") == ""

    assert world.states("train") == ["bound"]
    pod = world.server.pods[NAMESPACE, "train"]
    row = Allocation.objects.get()
    assert pod["metadata"]["annotations"][ATTEMPT] == f"{row.pk}/{row.bind_attempt}"


def test_the_binding_of_another_allocation_is_not_ours(world: World, late: Late) -> None:
    """LEASE-2 the same node and devices by another allocation's Binding: the pod does not run by this one."""
    lose_the_binding(world, late)
    body = {"metadata": {"annotations": {ATTEMPT: "another/1", ALLOCATED: "n1:0,1"}}, "spec": {"nodeName": "n1"}}
    world.server.store.patch(PODS, NAMESPACE, "train", body, content_type=MERGE)
    world.collect_garbage(later=60)
    assert world.states("train") == ["failed"]
