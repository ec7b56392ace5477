"""The table of a group's states: each edge is taken by every function that takes it, and none takes another."""

from __future__ import annotations

import ast
import itertools
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from allocations import fleet, ledger
from allocations.choices import GROUP_EDGES, GROUP_LIVE, GROUP_STARTS, GroupState, State
from allocations.engine.plan import plan
from allocations.ledger.group_devices import GroupOutcome, place_group
from allocations.ledger.group_joining import join_groups
from allocations.ledger.groups import (
    back_off,
    end_groups,
    fail_group,
    insert_groups,
    lose_group,
    move_group,
    note_pods,
    protect_group,
    put_off,
    release_unused,
)
from allocations.models import Allocation, GpuGroup, GroupBackOff
from audit.choices import EventKind
from audit.models import Event
from claims.dialects.request import DeviceAsk, DeviceRequest
from nodes.choices import Mode
from nodes.models import Device
from storage.transactions import atomic_retry
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

ROOT = Path(__file__).parents[3]
NOW = datetime.now(UTC)
HALF = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1, core_percent=50, memory_ratio=50),))
POD_UID = "reservation-pod-1"
TOLD = "GPU-node-a-1"
OPEN = (GroupState.WANTED, GroupState.STARTING, GroupState.READY)
"""States in which a group takes sharers."""
KINDS = {
    GroupState.STARTING: EventKind.RESERVATION_STARTING,
    GroupState.READY: EventKind.RESERVATION_READY,
    GroupState.UNPROTECTED: EventKind.RESERVATION_UNPROTECTED,
    GroupState.RELEASING: EventKind.RESERVATION_RELEASING,
    GroupState.GONE: EventKind.RESERVATION_GONE,
}


def held() -> uuid.UUID:
    """An allocation of half a GPU of node-a."""
    look = fleet.current()
    decision = plan(look.snapshot, HALF, candidates=[look.snapshot.node_index["node-a"]])
    terms = ledger.Terms(holder=ledger.pod_holder("research", "pod", f"uid-{uuid.uuid4()}"), request=HALF)
    return ledger.hold(terms, decision=decision, previous=None, now=look.now, hold_seconds=30)


def sharer() -> uuid.UUID:
    """The same, reserved."""
    allocation_id = held()
    assert ledger.reserve([allocation_id], now=NOW)
    return allocation_id


def joined() -> GpuGroup:
    """The group that one sharer begins."""
    (groups,) = join_groups([sharer()], pod_namespace="gpuplane-reservation", now=NOW, actor="test").values()
    assert groups is not None
    return GpuGroup.objects.get(pk=groups[0].id)


def made(group: GpuGroup) -> None:
    """Its reservation pod is made."""
    note_pods({group.pk: POD_UID}, now=NOW, actor="test")


def told(group: GpuGroup) -> None:
    """Its reservation pod reported another GPU than was guessed."""
    place_group(group.pk, pod_uid=POD_UID, uuids=[TOLD], now=NOW, actor="test")


def failed(group: GpuGroup) -> None:
    fail_group(group.pk, "the kubelet refused", now=NOW, actor="test")


def lost(group: GpuGroup) -> None:
    lose_group(group.pk, "its reservation pod is gone", now=NOW, actor="test")


def protected(group: GpuGroup) -> None:
    protect_group(group.pk, pod_uid="reservation-pod-2", now=NOW, actor="test")


def sharers_gone() -> None:
    """All of them have ended."""
    for one in Allocation.objects.filter(state=State.RESERVED):
        begun = ledger.begin_release(
            allocation_id=one.pk,
            sources=(State.RESERVED,),
            outcome=State.RELEASED,
            reason="test",
            now=NOW,
            actor="test",
        )
        assert begun
        assert ledger.finish_release(allocation_id=one.pk, outcome=State.RELEASED, now=NOW, actor="test")


def left(group: GpuGroup) -> None:
    """The last sharer has gone, if there is one, and nobody needs the group."""
    sharers_gone()
    release_unused([group.name], spare=0, now=NOW, actor="test")


def ended(group: GpuGroup) -> None:
    end_groups([group.pk], now=NOW, actor="test")


def adopted() -> GpuGroup:
    """The group of a reservation pod that runs already."""
    device = Device.objects.get(uuid=TOLD)
    row = GpuGroup(
        name="adopted",
        node=device.node,
        state=GroupState.READY,
        shared=True,
        uuids=[TOLD],
        pod_namespace="gpuplane-reservation",
        pod_name="gpu-reservation-node-a-adopted",
        pod_uid=POD_UID,
        changed_at=NOW,
    )

    @atomic_retry
    def insert() -> None:
        insert_groups([row], now=NOW, actor="test")

    insert()
    return row


Step = Callable[[GpuGroup], None]
PATHS: dict[GroupState, tuple[Step, ...]] = {
    GroupState.WANTED: (),
    GroupState.STARTING: (made,),
    GroupState.READY: (made, told),
    GroupState.UNPROTECTED: (made, told, lost),
    GroupState.RELEASING: (made, told, left),
    GroupState.GONE: (made, told, left, ended),
}
"""State → how a group that was just begun gets there."""
STARTING: dict[str, tuple[GroupState, Callable[[], GpuGroup], EventKind]] = {
    "join_groups": (GroupState.WANTED, joined, EventKind.RESERVATION_WANTED),
    "insert_groups": (GroupState.READY, adopted, EventKind.RESERVATION_ADOPTED),
}
EVERY_HELD = (GroupState.WANTED, GroupState.STARTING, GroupState.READY, GroupState.UNPROTECTED)
VERBS: dict[str, tuple[tuple[GroupState, ...], GroupState, Step, EventKind | None]] = {
    "note_pods": ((GroupState.WANTED,), GroupState.STARTING, made, None),
    "place_group": ((GroupState.STARTING,), GroupState.READY, told, None),
    "fail_group": (
        (GroupState.WANTED, GroupState.STARTING),
        GroupState.RELEASING,
        failed,
        EventKind.RESERVATION_FAILED,
    ),
    "lose_group": ((GroupState.READY,), GroupState.UNPROTECTED, lost, None),
    "protect_group": ((GroupState.UNPROTECTED,), GroupState.READY, protected, None),
    "release_unused": (EVERY_HELD, GroupState.RELEASING, left, None),
    "end_groups": ((GroupState.RELEASING,), GroupState.GONE, ended, None),
}
"""Function → the states it starts from, the state it leads to, a call of it, its event where it is not the state's."""
WALKS = [
    pytest.param(source, verb, id=f"{source.value}: {verb}")
    for verb, (sources, *_) in VERBS.items()
    for source in sources
]
REFUSED = [
    pytest.param(source, verb, id=f"{source.value}: {verb}")
    for verb, (sources, *_) in VERBS.items()
    for source in GroupState
    if source not in sources
]


def group_in(state: GroupState) -> GpuGroup:
    """A group that came to this state the usual way."""
    group = joined()
    for step in PATHS[state]:
        step(group)
    group.refresh_from_db()
    assert group.state == state
    return group


def events_of(group: GpuGroup) -> list[str]:
    events = Event.objects.filter(kind__startswith="reservation.", name=group.name)
    return list(events.order_by("id").values_list("kind", flat=True))


def grouped(group: GpuGroup) -> list[tuple[str, bool]]:
    """UUID of each GPU that the group has, and whether it takes sharers."""
    devices = Device.objects.filter(gpu_group=group.name).order_by("minor")
    return [(device.uuid, device.gpu_group_open) for device in devices]


@pytest.fixture
def node(ledger_db: TestDatabase) -> None:
    """A node of two GPUs that its kubelet gives out."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=2, mode=Mode.DEVICE_PLUGIN)


def test_the_functions_cover_the_table() -> None:
    taken = {(source, target) for sources, target, *_ in VERBS.values() for source in sources}
    assert taken == {(source, target) for source, targets in GROUP_EDGES.items() for target in targets}
    assert {state for state, *_ in STARTING.values()} == set(GROUP_STARTS)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("verb", STARTING)
def test_a_group_begins_with_one_event(verb: str) -> None:
    """SHARE-7 a group's row is inserted in the state that it begins in, with one event."""
    state, begin, kind = STARTING[verb]
    group = begin()
    group.refresh_from_db()
    assert (group.state, events_of(group)) == (state, [kind])


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("source", "verb"), WALKS)
def test_an_edge_leaves_one_event(source: GroupState, verb: str) -> None:
    """SHARE-6 SHARE-7 each move writes one event; a GPU names its group exactly while the group is not gone, and takes
    sharers only while its reservation pod is there or to come.
    """
    _, target, step, kind = VERBS[verb]
    group = group_in(source)
    before = events_of(group)
    for _ in range(2):  # a move happens once
        step(group)
        group.refresh_from_db()
        assert group.state == target
        assert events_of(group) == [*before, kind or KINDS[target]]
    devices = grouped(group)
    assert len(devices) == (1 if target in GROUP_LIVE else 0)
    assert [is_open for _, is_open in devices] == [target in OPEN] * len(devices)
    if target is GroupState.READY:
        assert devices == [(TOLD, True)]
    assert problems(leases=False) == []


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("source", "verb"), REFUSED)
def test_a_function_takes_no_other_edge(source: GroupState, verb: str) -> None:
    """SHARE-7 a function leaves a group where it is that is in none of the states it starts from."""
    group = group_in(source)
    before, devices = events_of(group), grouped(group)
    VERBS[verb][2](group)
    group.refresh_from_db()
    assert (group.state, events_of(group), grouped(group)) == (source, before, devices)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(source, target, id=f"{source.value} to {target.value}")
        for source, target in itertools.product(GroupState, GroupState)
        if target not in GROUP_EDGES[source]
    ],
)
def test_what_is_no_edge_is_refused(source: GroupState, target: GroupState) -> None:
    """SHARE-7 a move that the table does not have never reaches the database."""
    row = GpuGroup(name="x", state=source)
    with pytest.raises(ValueError, match="no move of a group from"):
        move_group(row, target, "", now=NOW, actor="test")
    assert not GpuGroup.objects.exists()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
@pytest.mark.parametrize("state", [state for state in GroupState if state not in GROUP_STARTS])
def test_no_group_begins_in_another_state(state: GroupState) -> None:
    with pytest.raises(ValueError, match="no group begins"):
        insert_groups([GpuGroup(name="x", state=state)], now=NOW, actor="test")


@pytest.mark.usefixtures("node")
def test_a_group_stays_while_somebody_has_it() -> None:
    """SHARE-7 neither released nor ended before its last sharer has gone; one that failed keeps its GPU until then."""
    group = group_in(GroupState.READY)
    assert release_unused([group.name], spare=0, now=NOW, actor="test") == []
    group.refresh_from_db()
    assert group.state == GroupState.READY
    left(group)
    second = group_in(GroupState.STARTING)
    failed(second)
    assert end_groups([second.pk], now=NOW, actor="test") == 0
    assert len(grouped(second)) == 1
    left(second)
    assert end_groups([second.pk], now=NOW, actor="test") == 1
    assert grouped(second) == []


@pytest.mark.usefixtures("node")
def test_a_hold_that_ends_leaves_a_spare_group_open() -> None:
    """SHARE-7 it never joined the group; only the last sharer closes it, until it is known to be spare."""
    group = group_in(GroupState.READY)
    sharers_gone()
    assert grouped(group) == [(TOLD, False)]
    assert release_unused([group.name], spare=1, now=NOW, actor="test") == []
    assert grouped(group) == [(TOLD, True)]
    hold = held()
    assert Device.objects.get(uuid=TOLD).core_used == 50
    assert ledger.drop_hold(allocation_id=hold, outcome=State.RELEASED, reason="test", now=NOW, actor="test")
    assert grouped(group) == [(TOLD, True)]
    assert Device.objects.get(uuid=TOLD).core_used == 0


@pytest.mark.usefixtures("node")
def test_a_failure_puts_the_node_off_and_a_gpu_ends_that() -> None:
    """SHARE-5 30 s, 2 min, 10 min after failures in a row; the first reservation pod that tells its GPU ends it."""
    for number, want in enumerate((30, 120, 600, 600), start=1):
        group = group_in(GroupState.STARTING)
        failed(group)
        known = GroupBackOff.objects.get()
        assert (known.failures, known.until, known.reason) == (
            number,
            NOW + timedelta(seconds=want),
            "the kubelet refused",
        )
        assert set(Device.objects.values_list("no_group_until", flat=True)) == {known.until}
        left(group)
        ended(group)
        Device.objects.update(no_group_until=NOW)  # the time is over
    group_in(GroupState.READY)
    assert not GroupBackOff.objects.exists()
    assert set(Device.objects.values_list("no_group_until", flat=True)) == {None}


@pytest.mark.usefixtures("node")
def test_what_an_unprotected_group_tries_is_no_move() -> None:
    """SHARE-7 a new reservation pod is noted, put off again and again; the group is unprotected all the while."""
    group = group_in(GroupState.UNPROTECTED)
    before = events_of(group)
    note_pods({group.pk: "reservation-pod-2"}, now=NOW, actor="test")
    group.refresh_from_db()
    assert (group.state, group.pod_uid, group.started_at) == (GroupState.UNPROTECTED, "reservation-pod-2", NOW)
    for number in (1, 2, 3, 4):
        put_off(group.pk, now=NOW)
        group.refresh_from_db()
        assert (group.pod_uid, group.retries, group.retry_at) == ("", number, NOW + back_off(number))
    assert (group.state, events_of(group)) == (GroupState.UNPROTECTED, before)
    protected(group)
    group.refresh_from_db()
    assert (group.state, group.retries, group.pod_uid) == (GroupState.READY, 0, "reservation-pod-2")


@pytest.mark.usefixtures("node")
def test_another_pod_than_the_groups_moves_nothing() -> None:
    """SHARE-5 what a pod says that is not the group's own any more counts for nothing."""
    group = group_in(GroupState.STARTING)
    placed = place_group(group.pk, pod_uid="another", uuids=[TOLD], now=NOW, actor="test")
    group.refresh_from_db()
    assert (placed.outcome, group.state) == (GroupOutcome.MOVED_ON, GroupState.STARTING)


WRITER = "allocations/ledger/groups.py"


def _written(tree: ast.AST) -> list[str]:
    """Statements of a module that set the state of a group, or may."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        named = {keyword.arg for keyword in node.keywords}
        if "GpuGroup" in called and called.rpartition(".")[2] in {"bulk_create", "bulk_update", "create"}:
            found.append(f"{called}() in line {node.lineno}")
        elif "GpuGroup" in called and called.rpartition(".")[2] == "update" and "state" in named:
            found.append(f"update(state=) in line {node.lineno}")
    return found


def test_states_are_set_by_one_module() -> None:
    """SHARE-7 groups begin and move in `ledger.groups` alone; adoption builds a row and has it inserted there."""
    modules = [path for path in (ROOT / "allocations").rglob("*.py") if "migrations" not in path.parts]
    writers = {path.relative_to(ROOT).as_posix() for path in modules if _written(ast.parse(path.read_text("utf-8")))}
    assert writers == {WRITER}
