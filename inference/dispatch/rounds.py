"""One round: what gateways report is written down, and free places go to the requests whose turn it is.

`dispatch` is one transaction, or two where only some of those that arrive find room at once. Called by gateways
(`gpuplane.listeners.gateway`) with what happened to their requests since their last call, by
`inference.dispatch.gateways` for requests of gateways that have ended, and by the task `dispatch_requests`. Invariants:
rounds of one model are serial (its row is locked; SQLite has one writer), but for `immediate_places`; a slot that has
moved meanwhile costs another try, never a place too many; messages are sent after the commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from allocations.engine.slots.records import Runtime, SlotModel
from inference.dispatch import rows
from inference.dispatch.endings import Leaving, Moment, ended, moments_before, recount
from inference.dispatch.immediate_places import KEYS_AT_ONCE, placed_at_once
from inference.dispatch.order import Waiting, in_turn
from inference.dispatch.places import OpenSlot, give
from inference.dispatch.records import (
    Arrival,
    Ending,
    Outcome,
    Recheck,
    Retry,
    Round,
    Started,
    Step,
    StepResult,
)
from inference.models import Turn
from inference.wake import wake_requests, wake_slots
from storage.cursors import Statement, rows_of, run_all, run_together
from storage.transactions import atomic_retry

AVOID_SECONDS: Final = 3.0
"""How long a request is not sent to a slot that did not take it."""
TRIES: Final = 5


class _SlotMoved(Exception):
    """A slot began to drain, or was given to others, since it was read: nothing of the round is kept."""


def dispatch(steps: Sequence[Step], *, gateway: str, now: datetime, monotonic: float, queue_length: int) -> Round:
    """Write the steps down and give places.

    `gateway`: whose steps these are, "" for none; `monotonic`: the reading at `now` of the clock that `at` of the steps
    is read from; `queue_length`: how many requests of one model may wait.
    """
    to_moment = moments_before(now, monotonic)

    def decided(some: Sequence[Step]) -> Round:
        for _ in range(TRIES - 1):
            try:
                return _dispatch(some, gateway, now, to_moment, queue_length, gives=True)
            except _SlotMoved:
                continue
        return _dispatch(some, gateway, now, to_moment, queue_length, gives=False)

    arrivals = [step for step in steps if isinstance(step, Arrival)]
    keys = {(step.model, step.lora) for step in arrivals}
    if not gateway or len(arrivals) < len(steps) or len(keys) > KEYS_AT_ONCE:
        return decided(steps)
    placed = placed_at_once(arrivals, to_moment, gateway=gateway, now=now)
    if len(placed) == len(steps):
        return Round([placed[place] for place in range(len(steps))], [])
    left = [place for place in range(len(steps)) if place not in placed]
    done = decided([steps[place] for place in left])
    outcomes: dict[int, Outcome] = {**placed, **dict(zip(left, done.outcomes, strict=True))}
    return Round([outcomes[place] for place in range(len(steps))], done.started)


@atomic_retry
def _dispatch(
    steps: Sequence[Step], gateway: str, now: datetime, moment: Moment, queue_length: int, *, gives: bool
) -> Round:
    """One try. `gives`: whether places are given; else all that is written, and everybody waits."""
    outcomes: list[Outcome] = [StepResult.WAITS] * len(steps)
    leaving = {place: step for place, step in enumerate(steps) if isinstance(step, Ending | Retry)}
    models, *read = _read({step.model for step in steps}, Leaving(leaving, moment, now=now), outcomes)
    over = {step.id: step for step in leaving.values() if isinstance(step, Ending)}
    arrivals = {place: step for place, step in enumerate(steps) if isinstance(step, Arrival)}
    coming = [
        _waiting_of(step, moment, gateway) for step in arrivals.values() if step.model in models and step.id not in over
    ]
    given = _places(models, read, coming, now=now) if gives and models else _Given({}, {}, set())
    came = _Came(arrivals, models, over, given.places, gateway, queue_length)
    _write(given, {one.id for one in coming}, _new_requests(came, outcomes, moment), now=now)
    started = _started(given, {one.id for one in coming})
    places = {one.request: one.place for one in started}
    for place, step in leaving.items():
        if isinstance(step, Retry) and step.id in places:
            outcomes[place] = places[step.id]
    waits = any(
        outcome is StepResult.WAITS and not isinstance(step, Recheck)
        for step, outcome in zip(steps, outcomes, strict=True)
    )
    _wake(started, gateway, waits=waits)
    return Round(outcomes, started)


def _read(
    names: set[str], leaving: Leaving, outcomes: list[Outcome]
) -> tuple[dict[str, rows.ModelRow], Sequence[Any], Sequence[Any]]:
    """Lock the models, write who leaves, give their places back, and read slots and who waits for one with room."""
    written = [leaving.back, leaving.moves] if leaving.moves else []
    locked, *found, slots = run_together([rows.locking(names), *written, rows.reading_slots(names)])
    if found:
        (back,), moved = found
        results, miscounted = leaving.results(back, moved)
        for place, result in results.items():
            outcomes[place] = result
        for slot_id in sorted(miscounted):
            recount(slot_id)
    waiting = rows_of(rows.reading_waiting(names)) if rows.somebody_waits(slots) else ()
    return rows.model_rows(locked), slots, waiting


def _waiting_of(step: Arrival, moment: Moment, gateway: str) -> Waiting:
    return Waiting(
        id=step.id,
        model=step.model,
        lora=step.lora,
        priority=step.priority,
        token=step.token[: rows.TOKEN_LENGTH],
        arrived_at=moment(step.at),
        gateway=gateway,
    )


class _Given(NamedTuple):
    """Request → its slot, the requests among them, and the turns that were taken: model, LoRA and token."""

    places: dict[UUID, OpenSlot]
    requests: dict[UUID, Waiting]
    turns: set[tuple[str, str, str]]


def _places(
    models: Mapping[str, rows.ModelRow], read: Sequence[Any], coming: Sequence[Waiting], *, now: datetime
) -> _Given:
    """Which free places go to requests that wait and to those that arrive."""
    given = _Given({}, {}, set())
    slots = rows.open_slots(read[0], models.values(), now=now)
    free = {(slot.model, slot.lora) for slot in slots if slot.free}
    if not free:
        return given
    waited = rows.waiting_requests(read[1], avoided_since=now - timedelta(seconds=AVOID_SECONDS))
    by_key: defaultdict[tuple[str, str], list[Waiting]] = defaultdict(list)
    for one in (*waited, *coming):
        if (one.model, one.lora) in free:
            by_key[one.model, one.lora].append(one)
    has_waited = {(one.model, one.lora) for one in waited}
    for (name, lora), some in by_key.items():
        own = [slot for slot in slots if (slot.model, slot.lora) == (name, lora)]
        row = models[name]
        model = SlotModel(name=name, runtime=Runtime(row.runtime), parallel=row.parallel)
        places = give(in_turn(some, _served_at(name, lora, some)), own, model, now=now)
        asked = {one.id: one for one in some}
        given.places.update(places)
        given.requests.update({pk: asked[pk] for pk in places})
        if len(some) > len(places) or (name, lora) in has_waited:
            given.turns.update((name, lora, token) for pk in places if (token := asked[pk].token))
    return given


def _served_at(name: str, lora: str, waiting: Sequence[Waiting]) -> dict[str, datetime]:
    """Token → when it had its last turn; not asked where only one token waits."""
    tokens = {one.token for one in waiting}
    if len(tokens) < 2:
        return {}
    return dict(Turn.objects.filter(model_name=name, lora=lora, token__in=tokens).values_list("token", "served_at"))


class _Came(NamedTuple):
    """Requests that arrive, and what is known of them: endings in the same round, and places."""

    steps: Mapping[int, Arrival]
    models: Mapping[str, rows.ModelRow]
    over: Mapping[UUID, Ending]
    places: Mapping[UUID, OpenSlot]
    gateway: str
    queue_length: int


def _new_requests(came: _Came, outcomes: list[Outcome], moment: Moment) -> list[rows.NewRequest]:
    """What is to be written of them. Those beyond the queue are refused, and nothing is written of them."""
    known = {place: step for place, step in came.steps.items() if step.model in came.models}
    for place in came.steps.keys() - known.keys():
        outcomes[place] = StepResult.UNKNOWN_MODEL
    to_wait = {one.model for one in known.values() if one.id not in came.places and one.id not in came.over}
    lengths = Counter(rows.queue_lengths(to_wait) if to_wait else {})
    found = []
    for place, step in known.items():
        slot, ending = came.places.get(step.id), came.over.get(step.id)
        if ending is not None:
            outcomes[place] = StepResult.OVER
        elif slot is not None:
            outcomes[place] = slot.place
        elif lengths[step.model] >= came.queue_length:
            outcomes[place] = StepResult.QUEUE_FULL
            continue
        else:
            lengths[step.model] += 1
        found.append(
            rows.new_request(
                step,
                gateway=came.gateway,
                arrived_at=moment(step.at),
                slot=slot.id if slot is not None else "",
                over=ended(ending, moment) if ending is not None else None,
            )
        )
    return found


def _write(given: _Given, coming: set[UUID], new: Sequence[rows.NewRequest], *, now: datetime) -> None:
    """Write places, requests and turns. Raises _SlotMoved."""
    slots = {slot.id: slot for slot in given.places.values()}
    counts = Counter(slot.id for slot in given.places.values())
    statements: list[Statement] = [
        rows.taking(pk, counts[pk], parallel=slots[pk].parallel, now=now) for pk in sorted(counts)
    ]
    statements += [rows.starting(pk, slot.id, now=now) for pk, slot in given.places.items() if pk not in coming]
    if new:
        statements.append(rows.inserting(new, now=now))
    if not statements:
        return
    for statement, written in zip(statements, run_all(statements), strict=True):
        if not written.rows:
            raise _SlotMoved(statement.text)
    if given.turns:
        Turn.objects.bulk_create(
            [Turn(model_name=name, lora=lora, token=token, served_at=now) for name, lora, token in sorted(given.turns)],
            update_conflicts=True,
            unique_fields=["model_name", "lora", "token"],
            update_fields=["served_at"],
        )


def _started(given: _Given, coming: set[UUID]) -> list[Started]:
    """Requests among them that waited."""
    return [
        Started(pk, one.model, one.gateway, given.places[pk].place)
        for pk, one in given.requests.items()
        if pk not in coming
    ]


def _wake(started: Sequence[Started], gateway: str, *, waits: bool) -> None:
    """Wake the gateways of others' requests that were started, and the loop of slots for those that wait."""
    if waits:
        wake_slots()
    for name in {one.model for one in started if one.gateway != gateway}:
        wake_requests(name)
