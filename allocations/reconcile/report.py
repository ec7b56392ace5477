"""Differences that cannot be repaired here: told once each, as audit events (LEASE-6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from audit.choices import Kind
from audit.happenings import Happening
from audit.models import Event
from audit.services import LONGEST_MESSAGE, record_many

ACTOR = "reconcile"
MOST = 500
"""Told a turn; the others wait for the next."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What ledger and cluster disagree on. `name`: the pod or lease concerned.

    `disputed`: (device id, pod as `namespace/name`) of devices that the pod runs with although the ledger gave them, or others with them, away.
    """

    message: str
    namespace: str = ""
    name: str = ""
    node: str = ""
    allocation_id: UUID | None = None
    disputed: tuple[tuple[int, str], ...] = ()
    other: str = ""
    """Somebody of another namespace (`audit.happenings.Happening.other`): never part of the message."""


def differences_report(*, differences: Sequence[Difference], now: datetime) -> int:
    """Write an event for each that was not told last time of the same object; how many were new."""
    told = _told(differences)
    fresh = [one for one in differences if (one.namespace, one.name[:253], one.message[:LONGEST_MESSAGE]) not in told]
    fresh = fresh[:MOST]
    record_many(
        [
            Happening(
                kind=Kind.DIFFERENCE,
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


def _told(differences: Sequence[Difference]) -> set[tuple[str, str, str]]:
    """(namespace, name, message) of those that were told before."""
    told: set[tuple[str, str, str]] = set()
    for start in range(0, len(differences), MOST):
        messages = {one.message[:LONGEST_MESSAGE] for one in differences[start : start + MOST]}
        events = Event.objects.filter(kind=Kind.DIFFERENCE, message__in=messages)
        told.update(events.values_list("namespace", "name", "message"))
    return told
