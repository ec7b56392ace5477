"""When each node's agent was last heard, and what silence means (LEASE-5, DESIGN §6).

`flush` writes presence for all nodes heard in one statement every few seconds; the beat's task calls
`notice_silent`. Kept true: silence only stops new placement, holders keep their devices; only nodes
that ever had an agent session are judged; a state that something else set (the cluster says NotReady)
is left alone; and nobody is called silent while gpuplane itself was not listening.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog
from django.db import DataError, InterfaceError, OperationalError
from django.db.models import Case, Q, Value, When

from access.actors import SYSTEM
from access.transactions import atomic_retry
from audit.clock import database_now
from nodes import services
from nodes.choices import NodeState
from nodes.live.samples import Heard
from nodes.models import Node

SUSPECT_SECONDS: Final = 10
NOT_READY_SECONDS: Final = 40
SUSPECT_PROBLEM: Final = "the node's agent is silent"
NOT_READY_PROBLEM: Final = "the node's agent has been silent for too long"
OURS: Final = {(NodeState.SUSPECT, SUSPECT_PROBLEM), (NodeState.NOT_READY, NOT_READY_PROBLEM)}
"""States that silence set, and that being heard again ends."""

EARS: Final = "gpuplane:ears"
"""Redis hash: process → `ear`, renewed every second by processes that take frames."""
EAR_SECONDS: Final = 4
"""A mark not renewed for so long is that of a dead process."""
MOURNING_SECONDS: Final = 60
"""So long a dead process's mark is kept: its agents need a moment to find another one."""
NAMES_A_STATEMENT: Final = 500
ALL_BOOTS_EVERY: Final = 12

TEMPORARY: Final = (OperationalError, InterfaceError)
"""Errors of a database that is away or busy: presence is written again a few seconds later."""

log = structlog.get_logger(__name__)


class Writer:
    """Writes presence for one process and remembers which boots are on record."""

    def __init__(self) -> None:
        self._boots: dict[str, str] = {}
        self._calls = 0

    def write(self, *, heard: Mapping[str, Heard], now: datetime | None = None) -> None:
        """Note who was heard. `now` is the database's clock, read here when not given. In a database thread."""
        if self._calls % ALL_BOOTS_EVERY == 0:
            self._boots.clear()  # a node may have been registered since its boot was written in vain
        self._calls += 1
        fresh = {name: entry.boot for name, entry in heard.items() if self._boots.get(name) != entry.boot}
        ages = {name: entry.age_seconds for name, entry in heard.items()}
        moment = now or database_now()
        try:
            agents_seen(ages=ages, boots=fresh, now=moment)
        except DataError as error:
            log.exception("presence.boots_unwritable", why=str(error))
            agents_seen(ages=ages, boots={}, now=moment)  # a boot that cannot be written makes no agent look silent
        self._boots.update(fresh)


@atomic_retry
def agents_seen(*, ages: Mapping[str, float], boots: Mapping[str, str], now: datetime) -> None:
    """Set `agent_seen_at` of nodes to `now` less their ages (whole seconds), and `agent_boot` of some.

    Names that are no nodes are passed over. A later time on record stays.
    """
    by_moment: dict[datetime, list[str]] = {}
    for name, age in ages.items():
        by_moment.setdefault(now - timedelta(seconds=int(age)), []).append(name)
    for moment, names in by_moment.items():
        for start in range(0, len(names), NAMES_A_STATEMENT):
            chunk = names[start : start + NAMES_A_STATEMENT]
            earlier = Q(agent_seen_at__isnull=True) | Q(agent_seen_at__lt=moment)
            Node.objects.filter(earlier, name__in=chunk).update(agent_seen_at=moment)
    changed = list(boots.items())
    for start in range(0, len(changed), NAMES_A_STATEMENT):
        some = changed[start : start + NAMES_A_STATEMENT]
        known = Case(*(When(name=name, then=Value(boot)) for name, boot in some))
        Node.objects.filter(name__in=[name for name, _ in some]).update(agent_boot=known)


@dataclass(frozen=True, slots=True)
class Noticed:
    """What a look at all agents changed: names by what the node became."""

    suspect: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()


def notice_silent(*, now: datetime, listening_since: datetime | None) -> Noticed:
    """Make nodes suspect after 10 s of silence, not ready after 40 s, ready again when heard.

    `now` by the database's clock; `listening_since` from `listening_since_of`, None: nobody listens
    and nothing is known. Each node changes in a transaction of its own; calling it twice changes nothing.
    """
    found: dict[NodeState, list[str]] = {NodeState.SUSPECT: [], NodeState.NOT_READY: [], NodeState.READY: []}
    if listening_since is None:
        return Noticed()
    heard_after = now - timedelta(seconds=SUSPECT_SECONDS)
    silent = Q(agent_seen_at__lt=heard_after, state__in=(NodeState.READY, NodeState.SUSPECT))
    back = Q(agent_seen_at__gte=heard_after, state__in=(NodeState.SUSPECT, NodeState.NOT_READY))
    for node in Node.objects.filter(silent | back).order_by("name"):
        present = (NodeState(node.state), node.problem)
        if node.agent_seen_at is None or (present[0] != NodeState.READY and present not in OURS):
            continue
        want = state_for(seen_at=node.agent_seen_at, listening_since=listening_since, now=now)
        if want == present or (want[0] == NodeState.READY and node.agent_seen_at < heard_after):
            continue
        services.node_state_set(node=node, state=want[0], problem=want[1], actor=SYSTEM, now=now)
        found[want[0]].append(node.name)
    return Noticed(*(tuple(found[state]) for state in (NodeState.SUSPECT, NodeState.NOT_READY, NodeState.READY)))


def state_for(*, seen_at: datetime, listening_since: datetime, now: datetime) -> tuple[NodeState, str]:
    """(state, problem) of a node whose agent was last heard at `seen_at`."""
    silence = (now - max(seen_at, listening_since)).total_seconds()
    if silence > NOT_READY_SECONDS:
        return NodeState.NOT_READY, NOT_READY_PROBLEM
    if silence > SUSPECT_SECONDS:
        return NodeState.SUSPECT, SUSPECT_PROBLEM
    return NodeState.READY, ""


def ear(*, started: float, last: float) -> bytes:
    """A process's mark that it takes frames: since when, and that it still did at `last` (seconds since 1970)."""
    return msgspec.msgpack.encode((started, last))


def listening_since_of(ears: Mapping[bytes, bytes], *, epoch: float) -> tuple[datetime | None, list[bytes]]:
    """(since when frames from every agent would have been taken, marks to drop). `epoch`: now.

    That is since some living process started, and since the last death of another, whose agents had to
    find a new one. None where no process lives.
    """
    started: list[float] = []
    died: list[float] = []
    drop = []
    for name, mark in ears.items():
        try:
            since, last = msgspec.msgpack.decode(mark, type=tuple[float, float])
        except msgspec.MsgspecError:
            drop.append(name)
            continue
        if epoch - last <= EAR_SECONDS:
            started.append(since)
        elif epoch - last <= MOURNING_SECONDS:
            died.append(last)
        else:
            drop.append(name)
    since_when = max(min(started), *died) if started and died else min(started, default=None)
    return (None if since_when is None else datetime.fromtimestamp(since_when, UTC)), drop
