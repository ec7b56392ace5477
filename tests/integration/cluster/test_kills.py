"""A web process killed between any two steps of a bind that its door serves: collection and reconciling bring
everything right, both ways of binding.

Without a cluster, and for releases, see tests/integration/allocations/test_kills.py.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from django.conf import settings

from allocations.choices import LIVE, State
from allocations.models import Allocation
from nodes.models import Device
from tests.databases import TestDatabase
from tests.door import Door
from tests.fakes.apiserver import Fault
from tests.fakes.late import Late
from tests.integration.cluster.comparing import differences, given_twice
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.killed import UNFILTERED
from tests.servers import forked

LOOKED = "looked for a hold"
STEPS = {
    "whole devices": ["held", "reserved", "a lease of two", "both leases", "the Binding", "bound"],
    "a share that ends": ["held", "reserved", "the lease", "the Binding", "bound"],
    "planned by bind": [LOOKED, "held", "reserved", "a lease of two", "both leases", "the Binding", "bound"],
}
"""What is done by then, for each way: on the event loop, and in a thread where bind has to plan."""
CLAIMS = {"whole devices": "two", "a share that ends": "brief-half", "planned by bind": "two"}
KILLS = [
    pytest.param(way, number, id=f"{way}, after {what}")
    for way, steps in STEPS.items()
    for number, what in enumerate(steps, start=1)
]


@pytest.fixture
def small(world: World) -> World:
    """One node of four GPUs, a claim for each way, and the namespace of the leases."""
    world.node("n1")
    world.claim("two", count=2)
    world.claim("brief-half", count=1, core=50, memoryRatio=50, ttl=86_400)
    world.server.add_namespace("gpuplane-system")
    return world


def pod_of(world: World, name: str, way: str) -> dict[str, Any]:
    """A pod that is bound this way, as the API server has it."""
    labels = {UNFILTERED: "true"} if way == "planned by bind" else {}
    world.pod(name, claim=CLAIMS[way], spec={"schedulerName": "gpu-scheduler"}, labels=labels)
    return dict(world.server.pods[NAMESPACE, name])


def process(database: TestDatabase, pod: Mapping[str, Any], steps: int) -> forked.Process:
    """It filters and binds the pod, and dies after so many steps."""
    environment = {**database.environment, "GPUPLANE_KUBECONFIG": settings.GPUPLANE_KUBECONFIG}
    arguments = (str(steps), json.dumps(pod), "n1")
    return forked.start("tests.integration.cluster.killed", *arguments, environment=environment)


def collected(world: World) -> None:
    """Collection and reconciling have been there, until nothing is left to do."""
    for later in (120, 240, 360):
        world.collect_garbage(later=later)
        world.reconcile(later=later)


def nothing_is_lost(world: World) -> None:
    """Every pod goes: everything is free, and can be given again."""
    for name in [name for _, name in world.server.pods]:
        world.remove(name)
    world.reconcile(later=400)
    world.collect_garbage(later=500)
    assert not Allocation.objects.filter(state__in=LIVE).exists()
    assert not Device.objects.exclude(core_used=0, memory_used=0).exists()
    assert world.leases() == {}
    assert differences(world.server) == []


@pytest.mark.parametrize(("way", "steps"), KILLS)
def test_killed_between_two_steps(small: World, ledger_db: TestDatabase, way: str, steps: int) -> None:
    """LEASE-1 LEASE-3 the pod is bound with its devices and Leases, or it is not and they are free; nobody else has
    them meanwhile.
    """
    pod = pod_of(small, "killed", way)
    with process(ledger_db, pod, steps) as dying:
        assert dying.wait(60) == -signal.SIGKILL, dying.errors[-3000:]
    something_held = STEPS[way][steps - 1] != LOOKED
    assert Device.objects.exclude(core_used=0).exists() == something_held, (
        "what was decided is not given away meanwhile"
    )
    assert given_twice(small.server) == []
    was_bound = bool(small.server.pods[NAMESPACE, "killed"]["spec"].get("nodeName"))
    assert was_bound == (steps >= STEPS[way].index("the Binding") + 1)

    collected(small)
    assert differences(small.server) == []
    is_bound = bool(small.server.pods[NAMESPACE, "killed"]["spec"].get("nodeName"))
    assert is_bound or not was_bound
    assert Allocation.objects.filter(state=State.BOUND).count() == is_bound
    if not is_bound:
        with Door() as door:
            assert door.filtered(pod, ["n1"]) == "n1"
            assert door.bound(pod, "n1") == ""
        assert differences(small.server) == []
    nothing_is_lost(small)


@pytest.mark.parametrize("way", list(STEPS))
def test_there_is_no_further_step(small: World, ledger_db: TestDatabase, way: str) -> None:
    """The tables above are whole: one step more, and the process ends by itself, its pod bound."""
    with process(ledger_db, pod_of(small, "whole", way), len(STEPS[way]) + 1) as living:
        assert living.wait(60) == 0, living.errors[-3000:]
    assert differences(small.server) == []
    assert Allocation.objects.get().state == State.BOUND


@pytest.mark.parametrize("way", list(STEPS))
def test_killed_while_its_binding_is_on_the_way(small: World, ledger_db: TestDatabase, way: str) -> None:
    """LEASE-1 LEASE-3 the Binding of a dead process is applied after collection was there, and after its devices were
    asked for again: they are given once.
    """
    late = Late()
    small.server.faults.append(Fault("POST", r"/binding$", late=late))
    pod = pod_of(small, "slow", way)
    with process(ledger_db, pod, 1000) as dying:
        late.wait_held()
        dying.kill()
    collected(small)
    others = [pod_of(small, f"other-{number}", "whole devices") for number in range(2)]
    with Door() as door:
        for other in others:
            node = door.filtered(other, ["n1"])
            if node is not None:
                assert door.bound(other, node) == ""
    late.release()
    assert given_twice(small.server) == []
    collected(small)
    assert differences(small.server) == []
    nothing_is_lost(small)
