"""What is reserved for a preemptor is kept from everybody of at most its rank, by every verb and every process, until
the reservation ends.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.conf import settings

from access.actors import SYSTEM
from access.errors import DoesNotFit
from allocations import ledger
from allocations.explain import KEPT, pod_explain
from allocations.extender.bind import bind_pod
from allocations.extender.wire import BindArgs
from allocations.models import Allocation
from allocations.scheduling import preemption
from allocations.scheduling.preemption import reservations
from allocations.services import claim_devices
from claims.models import GpuClaim
from nodes.models import Device, PreemptionReservation
from nodes.revisions import next_revision
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.preemption.conftest import HIGH, LOW, MIDDLE, add, ask, preempt, reserved, uid
from tests.servers import forked


def elsewhere(database: TestDatabase, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """What another process answers, which has just started and knows nothing but the database and the cluster."""
    told = {"GPUPLANE_KUBECONFIG": settings.GPUPLANE_KUBECONFIG, "GPUPLANE_REDIS_URL": settings.GPUPLANE_REDIS_URL}
    done = forked.run(
        "tests.integration.cluster.preemption.replica",
        verb,
        given=msgspec.json.encode(body),
        environment={**database.environment, **told},
    )
    assert done.poll() == 0, done.errors[-3000:]
    answer: dict[str, Any] = msgspec.json.decode(done.output)
    return answer


def filtered_elsewhere(database: TestDatabase, world: World, name: str, nodes: list[str]) -> list[str]:
    found: list[str] = elsewhere(database, "filter", {"Pod": world.server.pods[NAMESPACE, name], "NodeNames": nodes})[
        "NodeNames"
    ]
    return found


def bind_args(world: World, name: str, node: str) -> BindArgs:
    return BindArgs(PodName=name, PodNamespace=NAMESPACE, PodUID=uid(world, name), Node=node)


def reserve_what_came_free(world: World) -> None:
    """`urgent` is reserved a GPU of n1; its victim is gone and the GPU free, before `urgent` asks again."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["a"]}
    world.remove("a")
    world.reconcile()
    assert reserved() == {"urgent": ("n1", True)}
    assert world.used("n1") == [0, 100]


def test_another_process_keeps_it(world: World, ledger_db: TestDatabase) -> None:
    """A replica, or this one after a restart: filter leaves the device to the preemptor, which gets it there."""
    reserve_what_came_free(world)
    for name, priority in (("equal", HIGH), ("lesser", MIDDLE)):
        add(world, name, priority)
        assert filtered_elsewhere(ledger_db, world, name, ["n1"]) == []
    assert filtered_elsewhere(ledger_db, world, "urgent", ["n1"]) == ["n1"]
    assert elsewhere(ledger_db, "bind", msgspec.to_builtins(bind_args(world, "urgent", "n1"))) == {"Error": ""}
    assert "urgent" not in reserved()
    assert not Device.objects.filter(kept_for=uid(world, "urgent")).exists()


def test_a_reservation_of_another_process_is_respected(world: World, ledger_db: TestDatabase) -> None:
    """This one has its picture of the fleet since long."""
    add(world, "urgent", HIGH)
    assert filtered_elsewhere(ledger_db, world, "urgent", ["n1", "n2"]) == []
    body = {
        "Pod": world.server.pods[NAMESPACE, "urgent"],
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": uid(world, "a")}], "NumPDBViolations": 0}},
    }
    assert "n1" in elsewhere(ledger_db, "preempt", body)["NodeNameToMetaVictims"]
    world.remove("a")
    world.reconcile()
    add(world, "equal", HIGH)
    assert ask(world, "equal", ["n1"]) == []
    assert ask(world, "urgent", ["n1"]) == ["n1"]
    assert world.bind("urgent", "n1") == ""
    assert "urgent" not in reserved()


def test_who_is_more_important_passes(world: World) -> None:
    """A reservation holds against its own rank and those below."""
    reserve_what_came_free(world)
    add(world, "pressing", HIGH + 1)
    assert ask(world, "pressing", ["n1"]) == ["n1"]
    assert world.bind("pressing", "n1") == ""
    assert world.states("pressing") == ["bound"]


@pytest.mark.parametrize(
    ("priority", "error"),
    [
        pytest.param(LOW, "no GPU is free", id="less important"),
        pytest.param(HIGH, "no GPU is free", id="equal"),
        pytest.param(HIGH + 1, "", id="more important"),
    ],
)
def test_bind_without_a_hold(world: World, priority: int, error: str) -> None:
    """It plans again on the node named, and leaves alone what is reserved."""
    reserve_what_came_free(world)
    add(world, "late", priority)
    told = bind_pod(bind_args(world, "late", "n1"))
    assert bool(told) is bool(error), told
    assert world.used("n1") == ([0, 100] if error else [100, 100])


def rest_claim(world: World) -> Allocation:
    claim = GpuClaim.objects.get(namespace=NAMESPACE, name="claim-1")
    return claim_devices(claim=claim, actor=SYSTEM)


def test_a_claim_over_rest_leaves_it_alone(world: World) -> None:
    """CLAIM-10 whoever claims without a pod has no priority, and ranks below every pod that was reserved something."""
    reserve_what_came_free(world)
    with pytest.raises(DoesNotFit):
        rest_claim(world)
    assert ask(world, "urgent", ["n1"]) == ["n1"]
    assert world.bind("urgent", "n1") == ""
    world.remove("b")
    world.reconcile()
    assert rest_claim(world).node.name == "n1"


def by_filter(world: World) -> bool:
    return ask(world, "late", ["n1"]) == []


def by_bind(world: World) -> bool:
    return bind_pod(bind_args(world, "late", "n1")) != ""


def by_claim(world: World) -> bool:
    with pytest.raises(DoesNotFit):
        rest_claim(world)
    return True


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(by_filter, id="filter"),
        pytest.param(by_bind, id="bind"),
        pytest.param(by_claim, id="REST"),
    ],
)
def test_a_reservation_written_after_the_look(
    world: World, monkeypatch: pytest.MonkeyPatch, refused: Callable[[World], bool]
) -> None:
    """LEASE-2 between the picture's refresh and the hold: the ledger's own UPDATE refuses."""
    reserve_what_came_free(world)
    add(world, "late", HIGH)
    (made,) = reservations.live(database_now())
    reservations.end([made], database_now())
    hold, tries = ledger.hold, 0

    def held_late(terms: ledger.Terms, **words: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            reservations.write(made)
        return hold(terms, **words)

    monkeypatch.setattr(ledger, "hold", held_late)
    assert refused(world)
    assert tries == 1
    assert world.used("n1") == [0, 100]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda world: preemption.pod_gone(uid(world, "urgent"), database_now()), id="its pod is gone"),
        pytest.param(lambda _: reservations.end(reservations.live(database_now()), database_now()), id="taken back"),
        pytest.param(lambda _: _lapse(), id="its time is over, and nobody tidied up"),
    ],
)
def test_an_end_frees_the_device(world: World, end: Callable[[World], object]) -> None:
    """By the database's clock, in a process that knows the reservation from before."""
    reserve_what_came_free(world)
    add(world, "lesser", LOW)
    assert ask(world, "lesser", ["n1"]) == []
    end(world)
    assert ask(world, "lesser", ["n1"]) == ["n1"]


def test_a_pod_that_is_kept_off_gets_the_reason(world: World) -> None:
    """VIEW-3 a device seems free, and is not for this pod."""
    reserve_what_came_free(world)
    add(world, "lesser", LOW)
    assert ask(world, "lesser", ["n1"]) == []
    assert pod_explain(NAMESPACE, "lesser", SYSTEM)["summary"] == KEPT
    reservations.end(reservations.live(database_now()), database_now())
    assert pod_explain(NAMESPACE, "lesser", SYSTEM)["summary"].startswith("n1 can serve it now")


def _lapse() -> None:
    over = database_now() - timedelta(seconds=1)
    PreemptionReservation.objects.update(until=over)
    Device.objects.exclude(kept_for="").update(kept_until=over, revision=next_revision())
