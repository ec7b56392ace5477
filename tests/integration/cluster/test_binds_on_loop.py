"""Binds of the event loop: each gets its own answer, whatever becomes of its requests; only what has to be planned
again takes a thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from allocations.choices import State
from allocations.extender import views
from allocations.extender.bind import bind_pod
from allocations.extender.wire import BindArgs
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling import limits
from kube.keys import NATIVE_GPU, SHARED_HOLDER
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World, bound_by_the_door
from tests.ledger_truth import problems

STRANGER = "somebody"
BINDING, LEASE = r"/binding$", r"/leases$"


def held(world: World, name: str, **options: str) -> tuple[str, str, str]:
    """A pod that was filtered: (name, UID, node)."""
    uid = world.pod(name, **options)
    node = world.filter(name)
    assert node is not None
    return name, uid, node


def states() -> Counter[str]:
    return Counter(Allocation.objects.values_list("state", flat=True))


def agreed(world: World) -> None:
    """Devices, grants and picture are as promised, and each device of a bound pod has its Lease."""
    assert problems(leases=False) == []
    wanted = {
        f"{grant.type}-{grant.allocation.node.name}-{grant.minor}": grant.allocation.holder
        if grant.whole
        else SHARED_HOLDER
        for grant in AllocationDevice.objects.filter(allocation__state=State.BOUND)
    }
    found = {name: lease["spec"]["holderIdentity"] for (_, name), lease in world.server.leases.items()}
    assert {name: holder for name, holder in found.items() if holder != STRANGER} == wanted


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pods that a thread had to look at."""
    seen: list[str] = []

    def noted(args: BindArgs) -> str:
        seen.append(args.PodName)
        return bind_pod(args)

    monkeypatch.setattr(views, "bind_pod", noted)
    return seen


def test_a_dozen_are_bound_at_once(world: World, alone: list[str]) -> None:
    """A dozen binds at once: leases, Bindings with their annotations, and the ledger agree."""
    for number in range(3):
        world.node(f"n{number}", gpus=8)
    world.claim()
    world.place("first", claim="two")  # makes the namespace of the leases
    alone.clear()
    asked = [held(world, f"p{number}") for number in range(11)]
    assert bound_by_the_door(asked) == [""] * 11
    assert alone == []
    assert states() == {State.BOUND: 12}
    assert len(world.server.leases) == 24
    for name, _, node in asked:
        stored = world.server.pods[NAMESPACE, name]
        assert stored["spec"]["nodeName"] == node
        assert stored["metadata"]["annotations"]["gpu.scheduling/allocated"].startswith(f"{node}:")
    agreed(world)


def test_the_same_pod_twice_at_once_is_bound_once(world: World) -> None:
    world.node("n1")
    world.claim()
    one = held(world, "twice")
    assert bound_by_the_door([one, one, one]) == ["", "", ""]
    assert states() == {State.BOUND: 1}
    assert len(world.server.leases) == 2


def test_the_same_pod_to_two_nodes_at_once_goes_to_one(world: World) -> None:
    world.node("n1")
    world.node("n2")
    world.claim()
    name, uid, node = held(world, "torn")
    other = {"n1": "n2", "n2": "n1"}[node]
    told = bound_by_the_door([(name, uid, node), (name, uid, other)])
    where = world.server.pods[NAMESPACE, name]["spec"]["nodeName"]
    assert (told[0] == "", told[1] == "") == (where == node, where == other)
    assert states()[State.BOUND] == 1
    agreed(world)


def test_each_gets_its_own_answer(world: World, alone: list[str]) -> None:
    """One without a hold, one whose pod went, one whose device a stranger's lease keeps, and plain ones beside them."""
    for number in range(7):
        world.node(f"n{number}", gpus=2)
    world.claim()
    world.place("first")
    good = [held(world, f"good-{number}") for number in range(3)]
    gone = held(world, "gone")
    world.remove("gone")
    taken = held(world, "taken")
    grant = Allocation.objects.get(pod_name="taken").devices.order_by("minor").first()
    assert grant is not None
    world.server.add_lease(f"gpu-{taken[2]}-{grant.minor}", STRANGER, namespace="gpuplane-system")
    used = set(Allocation.objects.values_list("node__name", flat=True))
    unfiltered = ("unfiltered", world.pod("unfiltered"), next(node for node in world.server.nodes if node not in used))
    alone.clear()
    told = bound_by_the_door([*good, gone, taken, unfiltered])
    assert told[:3] == ["", "", ""]
    assert told[3] == "the pod is gone"
    assert told[4].startswith("gpu devices are closed: held outside gpuplane")  # planned again, on that node only
    assert told[5] == ""
    assert set(alone) == {"taken", "unfiltered"}
    agreed(world)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("POST", BINDING, status=429), id="a Binding is throttled"),
        pytest.param(Fault("POST", BINDING, status=500), id="a Binding fails inside"),
        pytest.param(Fault("POST", BINDING, drop="after"), id="a Binding's answer is lost"),
        pytest.param(Fault("POST", LEASE, drop="after"), id="a lease's answer is lost"),
        pytest.param(Fault("POST", LEASE, status=503), id="a lease fails inside"),
    ],
)
def test_what_is_not_answered_with_yes_is_settled(world: World, alone: list[str], fault: Fault) -> None:
    """LEASE-3 whatever became of the request, the pod is bound once and holds its leases."""
    world.node("n1", gpus=8)
    world.claim()
    world.place("first")
    alone.clear()
    asked = [held(world, f"p{number}") for number in range(3)]
    world.server.faults.append(replace(fault))  # used up by each run
    assert bound_by_the_door(asked) == ["", "", ""]
    assert alone == []
    assert states() == {State.BOUND: 4}
    assert len(world.server.leases) == 8
    agreed(world)


def test_an_answer_lost_and_then_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-1 LEASE-3 the API server dies with the answer to a Binding that it applied, and starting up refuses leases:
    the pod is read first, and its devices stay its own.
    """
    world.node("n1", gpus=4)
    world.claim()
    world.place("first")
    one = held(world, "second")

    monkeypatch.setattr(limits, "BIND_DEADLINE", timedelta(seconds=0.3))
    world.server.faults += [
        Fault("POST", BINDING, drop="after"),
        Fault("GET", r"/pods/second$", status=500, times=500),
    ]
    assert bound_by_the_door([one]) != [""]
    assert states() == {State.BOUND: 1, State.RESERVED: 1}
    refused = Fault("POST", LEASE, status=403, reason="Forbidden")
    world.server.faults[:] = [refused]
    assert bound_by_the_door([one]) == [""]
    assert refused.times == 1
    assert states() == {State.BOUND: 2}
    assert world.used("n1") == [100] * 4
    agreed(world)


def test_shares_and_ends(world: World, alone: list[str]) -> None:
    world.node("n1", gpus=2)
    world.claim("short", count=1, ttl=600)
    name, uid, node = held(world, "short", claim="short")
    share = world.server.add_pod("share", namespace=NAMESPACE, limits={"kubernetes.io/gpu": "50"})
    shared_node = world.filter("share")
    assert shared_node is not None
    told = bound_by_the_door([(name, uid, node), ("share", share["metadata"]["uid"], shared_node)])
    assert told == ["", ""]
    assert alone == []
    assert Allocation.objects.get(pod_name="short").expires_at is not None
    agreed(world)


def test_native_requests(world: World, alone: list[str]) -> None:
    world.node("n1", gpus=2)
    world.claim()
    world.place("first", claim="two")
    world.node("n2", gpus=1)
    alone.clear()
    made = world.server.add_pod("native", namespace=NAMESPACE, limits={NATIVE_GPU: "1"})
    node = world.filter("native")
    assert node == "n2"
    assert bound_by_the_door([("native", made["metadata"]["uid"], node)]) == [""]
    assert alone == []
