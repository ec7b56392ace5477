"""What a comparison did, and the differences that it cannot repair, each reported once as an audit event (LEASE-6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import NamedTuple
from uuid import UUID

import msgspec

from audit.choices import EventKind
from audit.events import NewEvent
from audit.models import Event
from audit.services import LONGEST_MESSAGE, record_many

ACTOR = "reconcile"
MOST = 500
"""Events of one comparison; the others wait for the next."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What ledger and cluster disagree on. `name`: the pod or lease concerned.

    `disputed`: (device id, pod as `namespace/name`) of devices that the pod runs with although the ledger does not give
    them to it alone.
    """

    message: str
    namespace: str = ""
    name: str = ""
    node: str = ""
    allocation_id: UUID | None = None
    disputed: tuple[tuple[int, str], ...] = ()
    other: str = ""
    """Somebody of another namespace (`audit.events.NewEvent.other`): never part of the message."""


class Reconciled(msgspec.Struct, frozen=True):
    """What one comparison did, or a part of it. `problem`: why nothing (more) was done, empty when all went well."""

    recounted: int = 0
    released: int = 0
    holds_dropped: int = 0
    adopted: int = 0
    leases_taken: int = 0
    leases_deleted: int = 0
    strangers_marked: int = 0
    strangers_cleared: int = 0
    opened: int = 0
    closed: int = 0
    reopened: int = 0
    reminded: int = 0
    waiting_ended: int = 0
    corrected: int = 0
    nodes_changed: int = 0
    nodes_advertised: int = 0
    differences: int = 0
    reported: int = 0
    problem: str = ""
    lines: tuple[str, ...] = ()
    """One sentence for each thing done or found, for people."""

    @staticmethod
    def total(parts: Sequence[Reconciled]) -> Reconciled:
        """Counts and lines of all, and the problem that came first."""
        return Reconciled(
            **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
            problem=next((part.problem for part in parts if part.problem), ""),
            lines=tuple(chain.from_iterable(part.lines for part in parts)),
        )

    @property
    def quiet(self) -> bool:
        """Nothing was done and nothing was wrong."""
        return not (self.lines or self.problem)


_COUNTS = tuple(name for name in Reconciled.__struct_fields__ if name not in {"problem", "lines"})


class Found(NamedTuple):
    """What a part of a comparison did, and the differences that it cannot repair."""

    done: Reconciled = Reconciled()
    differences: Sequence[Difference] = ()

    @staticmethod
    def total(parts: Iterable[Found]) -> Found:
        """All of them as one."""
        listed = list(parts)
        differences = tuple(chain.from_iterable(part.differences for part in listed))
        return Found(Reconciled.total([part.done for part in listed]), differences)


def differences_report(*, differences: Sequence[Difference], now: datetime) -> int:
    """Write an event for each that has none yet, `MOST` at most; how many were written."""
    reported = _reported(differences)
    fresh = [
        one for one in differences if (one.namespace, one.name[:253], one.message[:LONGEST_MESSAGE]) not in reported
    ][:MOST]
    record_many(
        [
            NewEvent(
                kind=EventKind.DIFFERENCE,
                message=difference.message,
                actor=ACTOR,
                at=now,
                namespace=difference.namespace,
                name=difference.name,
                node=difference.node,
                allocation_id=difference.allocation_id,
                other=difference.other,
            )
            for difference in fresh
        ]
    )
    return len(fresh)


def _reported(differences: Sequence[Difference]) -> set[tuple[str, str, str]]:
    """(namespace, name, message) of those that have an event."""
    reported: set[tuple[str, str, str]] = set()
    for start in range(0, len(differences), MOST):
        messages = {one.message[:LONGEST_MESSAGE] for one in differences[start : start + MOST]}
        events = Event.objects.filter(kind=EventKind.DIFFERENCE, message__in=messages)
        reported.update(events.values_list("namespace", "name", "message"))
    return reported
