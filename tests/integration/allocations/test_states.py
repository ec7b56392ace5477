"""The table of an allocation's states: each edge is taken by every verb that takes it, and no verb takes another."""

from __future__ import annotations

import ast
import itertools
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from allocations import fleet, ledger
from allocations.choices import EDGES, LIVE, STARTS, State
from allocations.engine.plan import plan
from allocations.errors import MovedOn
from allocations.ledger.transitions import move
from allocations.models import Allocation
from audit.choices import EventKind
from audit.models import Event
from claims.dialects.request import DeviceAsk, DeviceRequest
from nodes.models import Device
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

ROOT = Path(__file__).parents[3]
NOW = datetime.now(UTC)
REQUEST = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1),))
KINDS = {
    State.HELD: EventKind.ALLOCATION_HELD,
    State.RESERVED: EventKind.ALLOCATION_RESERVED,
    State.BOUND: EventKind.ALLOCATION_BOUND,
    State.RELEASING: EventKind.ALLOCATION_RELEASING,
    State.RELEASED: EventKind.ALLOCATION_RELEASED,
    State.FAILED: EventKind.ALLOCATION_FAILED,
}


def held(*, previous: ledger.Live | None = None, node: str = "node-a") -> uuid.UUID:
    """A fresh hold on the node, in place of the pod's own hold before, if any."""
    picture, now, *_ = fleet.current()
    decision = plan(picture, REQUEST, candidates=[picture.node_index[node]])
    holder = ledger.pod_holder("research", "pod", f"uid-{uuid.uuid4()}") if previous is None else previous.holder
    terms = ledger.Terms(holder=holder, request=REQUEST)
    return ledger.hold(terms, decision=decision, previous=previous, now=now, hold_seconds=30)


def adopted() -> uuid.UUID:
    picture, now, *_ = fleet.current()
    terms = ledger.Terms(holder=ledger.pod_holder("research", "pod", f"uid-{uuid.uuid4()}"), request=REQUEST)
    grants = plan(picture, REQUEST, candidates=[picture.node_index["node-a"]]).grants
    return ledger.adopt(terms, node="node-a", grants=grants, now=now)


def reserved() -> uuid.UUID:
    allocation_id = held()
    assert ledger.reserve([allocation_id], now=NOW)
    return allocation_id


def bound() -> uuid.UUID:
    allocation_id = reserved()
    assert ledger.bound([allocation_id], now=NOW)
    return allocation_id


def let_go(allocation_id: uuid.UUID, outcome: State) -> bool:
    sources = (State.RESERVED, State.BOUND)
    return ledger.begin_release(
        allocation_id=allocation_id, sources=sources, outcome=outcome, reason="test", now=NOW, actor="test"
    )


def releasing() -> uuid.UUID:
    allocation_id = bound()
    assert let_go(allocation_id, State.RELEASED)
    return allocation_id


def dropped(allocation_id: uuid.UUID, outcome: State) -> bool:
    return ledger.drop_hold(allocation_id=allocation_id, outcome=outcome, reason="test", now=NOW, actor="test")


def ended(outcome: State) -> uuid.UUID:
    allocation_id = held()
    assert dropped(allocation_id, outcome)
    return allocation_id


def finished(allocation_id: uuid.UUID, outcome: State) -> bool:
    return ledger.finish_release(allocation_id=allocation_id, outcome=outcome, now=NOW, actor="test")


def batch_reserved(allocation_id: uuid.UUID) -> bool:
    row = Allocation.objects.get(pk=allocation_id)
    return row.pod_uid in ledger.reserve_held({row.pod_uid: "node-a"}, read_clock=lambda: NOW)[0]


def replaced(allocation_id: uuid.UUID) -> bool:
    """The pod's next filter chooses another node."""
    row = Allocation.objects.get(pk=allocation_id)
    previous = ledger.Live(
        id=row.pk,
        state=State.HELD,
        node="node-a",
        holder=ledger.pod_holder("research", "pod", row.pod_uid),
        request=REQUEST,
        claim_id=None,
        grants=(),
        memory_total={},
        bus_id={},
        usable=True,
        made_at=row.created_at,
        hold_until=row.hold_until,
    )
    try:
        held(previous=previous, node="node-b")
    except MovedOn:
        return False
    return True


MAKES: dict[State, Callable[[], uuid.UUID]] = {
    State.HELD: held,
    State.RESERVED: reserved,
    State.BOUND: bound,
    State.RELEASING: releasing,
    State.RELEASED: lambda: ended(State.RELEASED),
    State.FAILED: lambda: ended(State.FAILED),
}
STARTING: dict[str, tuple[State, Callable[[], uuid.UUID], EventKind]] = {
    "hold": (State.HELD, held, EventKind.ALLOCATION_HELD),
    "adopt": (State.BOUND, adopted, EventKind.ALLOCATION_ADOPTED),
}
Verb = tuple[tuple[State, ...], State, Callable[[uuid.UUID], bool]]
VERBS: dict[str, Verb] = {
    "reserve": ((State.HELD,), State.RESERVED, lambda one: one in ledger.reserve([one], now=NOW)),
    "reserve what the pod holds": ((State.HELD,), State.RESERVED, batch_reserved),
    "drop the hold": ((State.HELD,), State.RELEASED, lambda one: dropped(one, State.RELEASED)),
    "the hold expires": ((State.HELD,), State.FAILED, lambda one: dropped(one, State.FAILED)),
    "a newer filter replaces the hold": ((State.HELD,), State.RELEASED, replaced),
    "bound": ((State.RESERVED,), State.BOUND, lambda one: one in ledger.bound([one], now=NOW)),
    "bound for a time": (
        (State.RESERVED,),
        State.BOUND,
        lambda one: one in ledger.bound([one], now=NOW, expires_at=NOW + timedelta(hours=1)),
    ),
    "begin a release": ((State.RESERVED, State.BOUND), State.RELEASING, lambda one: let_go(one, State.RELEASED)),
    "finish a release": ((State.RELEASING,), State.RELEASED, lambda one: finished(one, State.RELEASED)),
    "finish an undoing": ((State.RELEASING,), State.FAILED, lambda one: finished(one, State.FAILED)),
}
WALKS = [
    pytest.param(source, verb, id=f"{source.value}: {verb}")
    for verb, (sources, _, _) in VERBS.items()
    for source in sources
]
REFUSED = [
    pytest.param(source, verb, id=f"{source.value}: {verb}")
    for verb, (sources, _, _) in VERBS.items()
    for source in State
    if source not in sources
]


def events_of(allocation_id: uuid.UUID) -> list[str]:
    return list(Event.objects.filter(allocation_id=allocation_id).order_by("id").values_list("kind", flat=True))


@pytest.fixture
def nodes(ledger_db: TestDatabase) -> None:
    """Two nodes of one GPU each."""
    assert ledger_db
    for name in ("node-a", "node-b"):
        NodeFactory(name=name, gpus=1)


def test_the_verbs_cover_the_table() -> None:
    taken = {(source, target) for sources, target, _ in VERBS.values() for source in sources}
    assert taken == {(source, target) for source, targets in EDGES.items() for target in targets}
    assert {state for state, _, _ in STARTING.values()} == set(STARTS)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("verb", STARTING)
def test_an_allocation_begins_with_one_event(verb: str) -> None:
    """LEASE-2 an allocation's row is inserted in the state that it begins in, with one event."""
    state, begin, kind = STARTING[verb]
    allocation_id = begin()
    assert Allocation.objects.get().state == state
    assert events_of(allocation_id) == [kind]
    assert Event.objects.count() == 1
    assert Device.objects.get(node__name="node-a").core_used == 100
    assert [problem for problem in problems() if not problem.startswith("lease")] == []


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(("source", "verb"), WALKS)
def test_an_edge_leaves_one_event(source: State, verb: str) -> None:
    """LEASE-2 each move changes the state, writes one event, and keeps devices used exactly while live."""
    _, target, move_on = VERBS[verb]
    allocation_id = MAKES[source]()
    before = events_of(allocation_id)
    assert Allocation.objects.get(pk=allocation_id).state == source
    assert move_on(allocation_id) is True
    assert Allocation.objects.get(pk=allocation_id).state == target
    assert events_of(allocation_id) == [*before, KINDS[target]]
    assert Device.objects.get(node__name="node-a").core_used == (100 if target in LIVE else 0)
    assert move_on(allocation_id) is False, "a move happens once"
    assert events_of(allocation_id) == [*before, KINDS[target]]
    assert [problem for problem in problems() if not problem.startswith("lease")] == []


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("source", "verb"), REFUSED)
def test_a_verb_takes_no_other_edge(source: State, verb: str) -> None:
    """LEASE-2 a verb leaves an allocation alone that is in none of the states it starts from."""
    allocation_id = MAKES[source]()
    before = Allocation.objects.filter(pk=allocation_id).values().get()
    events = Event.objects.count()
    used = list(Device.objects.order_by("pk").values_list("core_used", flat=True))
    assert VERBS[verb][2](allocation_id) is False
    assert Allocation.objects.filter(pk=allocation_id).values().get() == before
    assert Event.objects.count() == events
    assert list(Device.objects.order_by("pk").values_list("core_used", flat=True)) == used


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(source, target, id=f"{source.value} to {target.value}")
        for source, target in itertools.product(State, State)
        if target not in EDGES[source]
    ],
)
def test_what_is_no_edge_is_refused(source: State, target: State) -> None:
    """LEASE-2 a move that the table does not have never reaches the database."""
    with pytest.raises(ValueError, match="no move from"):
        move([uuid.uuid4()], (source,), target, now=NOW, actor="test", message=str, columns={})


WRITERS = {"allocations/ledger/transitions.py", "allocations/ledger/rows.py"}
GROUPS = "allocations/ledger/groups.py"


def _written(tree: ast.AST) -> list[str]:
    """Statements and ORM calls of a module that set the state of an allocation, or may."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {keyword.arg for keyword in node.keywords}
            if node.func.attr in {"update", "create", "update_or_create"} and "state" in named:
                found.append(f"{node.func.attr}(state=) in line {node.lineno}")
            elif node.func.attr == "save" or ast.unparse(node.func).startswith("Allocation.objects.bulk_"):
                found.append(f"{node.func.attr}() in line {node.lineno}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.split())
            if re.search(r"INSERT INTO allocations_allocation( |$)", text):
                found.append(f"INSERT in line {node.lineno}")
            elif re.search(r"UPDATE allocations_allocation( |$)", text):
                sets = text.partition(" SET ")[2].partition(" WHERE ")[0]
                if not sets or re.search(r"\bstate = ", sets):
                    found.append(f"UPDATE in line {node.lineno}")
    return found


def test_states_are_written_in_one_place() -> None:
    """LEASE-2 rows are inserted by `ledger.rows`, their state is set by `ledger.transitions`; nobody else writes it."""
    modules = [path for path in (ROOT / "allocations").rglob("*.py") if "migrations" not in path.parts]
    writers = {
        path.relative_to(ROOT).as_posix(): found
        for path in modules
        if (found := _written(ast.parse(path.read_text(encoding="utf-8"))))
    }
    groups = writers.pop(GROUPS)
    assert all(one.startswith("save()") for one in groups), groups
    names = {
        node.id
        for node in ast.walk(ast.parse((ROOT / GROUPS).read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    }
    assert "Allocation" not in names, "what it saves are groups (test_group_states.py)"
    assert set(writers) == WRITERS, writers


def test_allocations_are_written_by_the_ledger_alone() -> None:
    """LEASE-2 no other module updates their rows; ended ones are deleted by a task."""
    found = []
    for path in (ROOT / "allocations").rglob("*.py"):
        if "migrations" in path.parts or path.is_relative_to(ROOT / "allocations" / "ledger"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                text = ast.unparse(node.func)
                if text.startswith("Allocation.objects") and node.func.attr in WRITES:
                    found.append(f"{path.relative_to(ROOT).as_posix()}: {text}")
            elif isinstance(node, ast.Constant) and WRITING.search(str(node.value)):
                found.append(f"{path.relative_to(ROOT).as_posix()}: {node.value!r}")
    assert found == ["allocations/tasks.py: Allocation.objects.filter(id__in=ids).delete"]


WRITES = {"update", "create", "update_or_create", "get_or_create", "bulk_create", "bulk_update", "delete"}
WRITING = re.compile(r"(UPDATE|INSERT INTO|DELETE FROM) allocations_allocation\b")
