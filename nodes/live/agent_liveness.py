"""When each node's agent was last heard, and the state of nodes whose agents are silent (LEASE-5).

`flush` writes presence every few seconds; a periodic task calls `notice_silent`. Invariants: silence only stops new
placement, holders keep their devices; only nodes that ever had an agent session change; a state that something else set
(the cluster says NotReady) stays; no node becomes silent for a time in which gpuplane was not listening.
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
from nodes import services
from nodes.choices import NodeState
from nodes.live.samples import LastHeard
from nodes.models import Node
from storage.transactions import atomic_retry

SUSPECT_SECONDS: Final = 10
NOT_READY_SECONDS: Final = 40
SUSPECT_PROBLEM: Final = "the node's agent is silent"
NOT_READY_PROBLEM: Final = "the node's agent has been silent for too long"
OURS: Final = {(NodeState.SUSPECT, SUSPECT_PROBLEM), (NodeState.NOT_READY, NOT_READY_PROBLEM)}
"""States that silence sets, and that end when the agent is heard again."""

LISTENERS_KEY: Final = "gpuplane:ears"
"""Redis hash: process → `listener_mark`, renewed every second by processes that take frames."""
LISTENER_SECONDS: Final = 4
"""A process whose mark was not renewed for so long is dead."""
DEAD_LISTENER_SECONDS: Final = 60
"""How long a dead process's mark is kept: its agents need a moment to connect to another one."""
NAMES_A_STATEMENT: Final = 500
ALL_BOOTS_EVERY: Final = 12

TEMPORARY: Final = (OperationalError, InterfaceError)
"""Errors of a database that is away or busy: presence is written again a few seconds later."""

log = structlog.get_logger(__name__)


class Writer:
    """Writes presence for one process, and only those boots that changed."""

    def __init__(self) -> None:
        self._boots: dict[str, str] = {}
        self._calls = 0

    def write(self, *, heard: Mapping[str, LastHeard], now: datetime) -> None:
        """Write which agents were heard, at `now` by the database's clock. Call in a database thread."""
        if self._calls % ALL_BOOTS_EVERY == 0:
            self._boots.clear()  # a node may have been registered since
        self._calls += 1
        fresh = {name: entry.boot for name, entry in heard.items() if self._boots.get(name) != entry.boot}
        ages = {name: entry.age_seconds for name, entry in heard.items()}
        try:
            agents_seen(ages=ages, boots=fresh, now=now)
        except DataError as error:
            log.exception("presence.boots_unwritable", why=str(error))
            agents_seen(ages=ages, boots={}, now=now)  # a boot that cannot be written makes no agent silent
        self._boots.update(fresh)


@atomic_retry
def agents_seen(*, ages: Mapping[str, float], boots: Mapping[str, str], now: datetime) -> None:
    """Set `agent_seen_at` to `now` less the age (in whole seconds), unless it is later already, and `agent_boot`.

    Unknown names are ignored.
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
    """Names of the nodes that changed, by their new state."""

    suspect: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()


def notice_silent(*, now: datetime, listening_since: datetime | None) -> Noticed:
    """Make nodes suspect after 10 s of silence, not ready after 40 s, ready again when heard.

    `now` by the database's clock; `listening_since` from `listening_since_of`, or when that clock was set forward since
    (`storage.clock.StepClock`); None: no process listens, nothing changes. Each node changes in a transaction of its
    own; idempotent.
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
        want = state_for(silence=now - max(node.agent_seen_at, listening_since))
        if want == present or (want[0] == NodeState.READY and node.agent_seen_at < heard_after):
            continue
        services.node_state_set(node=node, state=want[0], problem=want[1], actor=SYSTEM, now=now)
        found[want[0]].append(node.name)
    return Noticed(*(tuple(found[state]) for state in (NodeState.SUSPECT, NodeState.NOT_READY, NodeState.READY)))


def state_for(*, silence: timedelta) -> tuple[NodeState, str]:
    """State and problem of a node whose agent has been silent for so long."""
    if silence > timedelta(seconds=NOT_READY_SECONDS):
        return NodeState.NOT_READY, NOT_READY_PROBLEM
    if silence > timedelta(seconds=SUSPECT_SECONDS):
        return NodeState.SUSPECT, SUSPECT_PROBLEM
    return NodeState.READY, ""


def listener_mark(*, started: float, last: float) -> bytes:
    """The mark of a process that takes frames since `started`, and still did at `last` (seconds since 1970)."""
    return msgspec.msgpack.encode((started, last))


def listening_since_of(marks: Mapping[bytes, bytes], *, epoch: float) -> tuple[datetime | None, list[bytes]]:
    """(since when every agent had a process to connect to, marks to delete). `epoch`: now.

    That is since the oldest living process started and the last other process died, whose agents had to connect anew;
    None without a living process.
    """
    started: list[float] = []
    died: list[float] = []
    drop = []
    for name, mark in marks.items():
        try:
            since, last = msgspec.msgpack.decode(mark, type=tuple[float, float])
        except msgspec.MsgspecError:
            drop.append(name)
            continue
        if abs(epoch - last) <= LISTENER_SECONDS:
            started.append(since)
        elif last > epoch:  # of a clock that was set back since: a process that lives writes its mark anew
            drop.append(name)
        elif epoch - last <= DEAD_LISTENER_SECONDS:
            died.append(last)
        else:
            drop.append(name)
    since_when = max(min(started), *died) if started and died else min(started, default=None)
    return (None if since_when is None else datetime.fromtimestamp(since_when, UTC)), drop
