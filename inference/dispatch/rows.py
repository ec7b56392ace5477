"""The rows of a round, by hand-written SQL: a request to a warm slot pays for each of these statements.

Called by `inference.dispatch.rounds`, `endings` and `immediate_places` inside their transaction. Django's query
compiler would take five times as long as the database does. Invariants: what is written is conditional on the state
that was read; the caller compares the number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec

from inference.choices import RequestState, RunnerState, State
from inference.dispatch.order import Waiting
from inference.dispatch.places import OpenSlot
from inference.dispatch.records import Arrival
from storage.columns import document, identity, read_identity, read_moment
from storage.cursors import Query, Statement, hot_cursor, moment, on_postgresql

REASON_LONGEST: Final = 500
TOKEN_LENGTH: Final = 64


class ModelRow(msgspec.Struct, frozen=True):
    """A model, as far as places depend on it."""

    pk: int
    name: str
    runtime: str
    source: str
    parallel: int


_MODELS: Final = """
SELECT id, name, runtime, source, parallel FROM inference_model WHERE {condition} ORDER BY name{lock}
"""


def locking(names: Collection[str]) -> Query:
    """Models by name, locked in the order of their names until the transaction ends: `model_rows` reads them."""
    condition, values = _among("name", sorted(names))
    lock = " FOR NO KEY UPDATE" if on_postgresql() else ""
    return Query(_MODELS.format(condition=condition, lock=lock), values)


def model_rows(found: Sequence[Any]) -> dict[str, ModelRow]:
    """Models by name."""
    return {row[1]: ModelRow(*row) for row in found}


_SLOTS: Final = """
SELECT s.id, s.model_id, s.lora, s.launch, s.active, s.last_used_at, s.ready_at, s.address, EXISTS (
  SELECT 1 FROM inference_request q WHERE q.model_name = m.name AND q.lora = s.lora AND q.state = 'waiting'
)
FROM inference_slot s LEFT JOIN inference_runner r ON r.id = s.runner_id JOIN inference_model m ON m.id = s.model_id
WHERE {condition} AND s.state = %s AND (r.state = %s OR s.pod_name <> '') ORDER BY s.id
"""


def reading_slots(names: Collection[str]) -> Query:
    """Ready slots of the models, those whose runner is heard of and pods, by id, and whether a request waits for one.

    `open_slots` and `somebody_waits` read them.
    """
    condition, values = _among("m.name", sorted(names))
    return Query(_SLOTS.format(condition=condition), [*values, State.READY.value, RunnerState.CONNECTED.value])


def somebody_waits(rows: Sequence[Any]) -> bool:
    """Whether a request waits for any of the slots, room or not."""
    return any(row[-1] for row in rows)


def open_slots(rows: Sequence[Any], models: Collection[ModelRow], *, now: datetime) -> list[OpenSlot]:
    """The slots, but for those of models that are not among these."""
    by_key = {model.pk: model for model in models}
    found = []
    for pk, model_key, lora, launch, active, used_at, ready_at, address, _ in rows:
        if model_key not in by_key:
            continue
        model, launched = by_key[model_key], _launched(launch)
        times = [at for at in (read_moment(used_at), read_moment(ready_at)) if at is not None]
        found.append(
            OpenSlot(
                id=pk,
                model=model.name,
                lora=lora,
                runtime=launched.runtime or model.runtime,
                source=launched.source or model.source or model.name,
                parallel=launched.parallel or model.parallel,
                active=active,
                used_at=max(times, default=now),
                address=address,
            )
        )
    return found


_WAITING: Final = """
SELECT q.id, q.model_name, q.lora, q.priority, q.token, q.arrived_at, q.gateway_id, q.tried
FROM inference_request q
WHERE {condition} AND q.state = 'waiting' AND EXISTS (
  SELECT 1 FROM inference_slot s JOIN inference_model m ON m.id = s.model_id
  WHERE m.name = q.model_name AND s.lora = q.lora AND s.state = 'ready' AND s.active < {parallel}
)
"""
_PARALLEL: Final = ("json_extract(s.launch, '$.parallel')", "(s.launch ->> 'parallel')::int")


def reading_waiting(names: Collection[str]) -> Query:
    """Requests of these models that wait while a slot has room: `waiting_requests` reads them."""
    condition, values = _among("q.model_name", sorted(names))
    return Query(_WAITING.format(condition=condition, parallel=_PARALLEL[on_postgresql()]), values)


def waiting_requests(rows: Sequence[Any], *, avoided_since: datetime) -> list[Waiting]:
    """The requests; slots that refused one since then are avoided by it."""
    since = avoided_since.timestamp()
    return [
        Waiting(
            id=read_identity(pk),
            model=name,
            lora=lora,
            priority=priority,
            token=token,
            arrived_at=read_moment(arrived_at) or avoided_since,
            gateway=gateway_id or "",
            avoids=_avoided(tried, since),
        )
        for pk, name, lora, priority, token, arrived_at, gateway_id, tried in rows
    ]


def taking(slot_id: str, count: int, *, parallel: int, now: datetime) -> Statement:
    """Take so many places of a slot that is ready and has room for them."""
    return Statement(
        "UPDATE inference_slot SET active = active + %s, last_used_at = %s "
        "WHERE id = %s AND state = %s AND active <= %s",
        [count, moment(now), slot_id, State.READY.value, parallel - count],
    )


_GIVE_BACK: Final = """
UPDATE inference_slot SET active = active - gone.places, last_used_at = %s
FROM (
  SELECT slot_id, count(*) AS places FROM (
    SELECT slot_id FROM inference_request WHERE state = 'running' AND slot_id IS NOT NULL AND ({condition}){lock}
  ) AS leaving GROUP BY slot_id
) AS gone
WHERE inference_slot.id = gone.slot_id AND active >= gone.places
"""


def giving_back(over: Sequence[UUID], again: Sequence[tuple[UUID, str]], *, now: datetime) -> Statement:
    """Give the places of running requests back: of those that are over, and of those that leave this slot.

    Before they are moved, with their models locked; the requests are locked, too, for models that were deleted.
    Returns the slots; one that counts fewer requests is left out.
    """
    condition, values = _among("id", [identity(pk) for pk in over])
    conditions, found = ([condition], values) if over else ([], [])
    for pk, slot_id in again:
        conditions.append("(id = %s AND slot_id = %s)")
        found += [identity(pk), slot_id]
    lock = " FOR UPDATE" if on_postgresql() else ""
    return Statement(_GIVE_BACK.format(condition=" OR ".join(conditions), lock=lock), [moment(now), *found], "id")


def starting(request_id: UUID, slot_id: str, *, now: datetime) -> Statement:
    """A request that waits runs now."""
    return Statement(
        "UPDATE inference_request SET state = 'running', slot_id = %s, started_at = %s, reason = '' "
        "WHERE id = %s AND state = 'waiting'",
        [slot_id, moment(now), identity(request_id)],
    )


def waiting_again(request_id: UUID, slot_id: str, reason: str, tried: Mapping[str, float]) -> Statement:
    """A request that ran in the slot waits; `tried`: slot → when it refused, in seconds since 1970."""
    return Statement(
        "UPDATE inference_request SET state = 'waiting', slot_id = NULL, started_at = NULL, reason = %s, tried = %s "
        "WHERE id = %s AND state = 'running' AND slot_id = %s",
        [reason[:REASON_LONGEST], document(tried), identity(request_id), slot_id],
    )


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended."""

    state: RequestState
    reason: str = ""
    tokens: int = 0
    first_byte_at: datetime | None = None
    ended_at: datetime


_END: Final = (
    "UPDATE inference_request SET state = %s, reason = %s, tokens = %s, first_byte_at = %s, ended_at = %s "
    "WHERE id = %s AND state = '{before}'"
)
_END_RUNNING: Final = _END.format(before="running")
_END_WAITING: Final = _END.format(before="waiting")


def ending(request_id: UUID, ended: Ended) -> tuple[Statement, Statement]:
    """A request is over: where it ran, which returns its slot, and where it waited."""
    values = [
        ended.state.value,
        ended.reason[:REASON_LONGEST],
        ended.tokens,
        moment(ended.first_byte_at),
        moment(ended.ended_at),
        identity(request_id),
    ]
    return Statement(_END_RUNNING, values, "slot_id"), Statement(_END_WAITING, values, "model_name")


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that arrives: with a slot, over, or waiting. `user`: name of its account."""

    id: UUID
    model: str
    lora: str
    priority: int
    user: str
    token: str
    gateway: str
    arrived_at: datetime
    slot: str = ""
    over: Ended | None = None


def new_request(
    step: Arrival, *, gateway: str, arrived_at: datetime, slot: str = "", over: Ended | None = None
) -> NewRequest:
    """The request of a step. `over`: how it ended already."""
    return NewRequest(
        id=step.id,
        model=step.model,
        lora=step.lora,
        priority=step.priority,
        user=step.user,
        token=step.token,
        gateway=gateway,
        arrived_at=arrived_at,
        slot=slot,
        over=over,
    )


INSERT: Final = """
INSERT INTO inference_request
  (id, model_name, lora, priority, user_id, state, reason, arrived_at, started_at, first_byte_at, ended_at,
   tokens, gateway_id, token, tried, slot_id)
"""
"""`ROW`s and their slots follow."""
ROW: Final = "%s, %s, %s, %s, (SELECT id FROM auth_user WHERE username = %s), %s, %s, %s, %s, %s, %s, %s, %s, %s, '{}'"


def inserting(requests: Sequence[NewRequest], *, now: datetime) -> Statement:
    """The statement that writes new requests."""
    values: list[Any] = []
    for one in requests:
        state = RequestState.RUNNING if one.slot else RequestState.WAITING
        values += [*row_values(one, state, started_at=now if one.slot else None), one.slot or None]
    return Statement(f"{INSERT} VALUES {', '.join([f'({ROW}, %s)'] * len(requests))}", values)


def row_values(one: NewRequest, state: RequestState, *, started_at: datetime | None) -> list[Any]:
    """Parameters of `ROW`."""
    over = one.over
    return [
        identity(one.id),
        one.model,
        one.lora,
        one.priority,
        one.user,
        (over.state if over else state).value,
        over.reason[:REASON_LONGEST] if over else "",
        moment(one.arrived_at),
        moment(started_at),
        moment(over.first_byte_at) if over else None,
        moment(over.ended_at) if over else None,
        over.tokens if over else 0,
        one.gateway or None,
        one.token[:TOKEN_LENGTH],
    ]


_LENGTHS: Final = """
SELECT model_name, count(*) FROM inference_request WHERE {condition} AND state = 'waiting' GROUP BY model_name
"""


def queue_lengths(names: Collection[str]) -> dict[str, int]:
    """How many requests of each model wait."""
    condition, values = _among("model_name", sorted(names))
    with hot_cursor() as cursor:
        cursor.execute(_LENGTHS.format(condition=condition), values)
        return dict(cursor.fetchall())


class _Launched(msgspec.Struct):
    runtime: str = ""
    source: str = ""
    parallel: int = 0


@lru_cache(maxsize=1024)
def _launched(text: str) -> _Launched:
    return msgspec.json.decode(text, type=_Launched)


def _avoided(tried: str, since: float) -> frozenset[str]:
    if tried == "{}":
        return frozenset()
    found = msgspec.json.decode(tried, type=dict[str, float])
    return frozenset(slot for slot, at in found.items() if at > since)


def _among(column: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """A condition, and its parameters: on PostgreSQL one text whatever the number, so that it stays prepared."""
    if on_postgresql():
        return f"{column} = ANY(%s)", [list(values)]
    return f"{column} IN ({', '.join(['%s'] * len(values))})", list(values)
