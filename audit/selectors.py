"""Reads of what happened.

Called by REST and pages. Kept true: nobody reads an event of a namespace they do not see; events
about access (accounts, sign-ins) are for admins, one's own apart; whom an event names of another
namespace (`Event.other`) leaves the database only for those who see that one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol
from uuid import UUID

from django.db.models import Case, CharField, F, Q, QuerySet, Value, When

from audit.models import Event

ACCESS_PREFIX = "access."


class Reader(Protocol):
    """Who reads: `access.actors.Actor`, which this room lies below."""

    @property
    def name(self) -> str:
        """Their user name."""

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Namespaces that they see; None: all."""


def event_list(
    *,
    actor: Reader,
    kind: str = "",
    by: str = "",
    namespace: str = "",
    name: str = "",
    node: str = "",
    claim: str = "",
    allocation: UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after_id: int | None = None,
) -> QuerySet[Event]:
    """Events that the actor may read, the newest first. Empty filters match all; `kind` may end in `.`: a family."""
    events = Event.objects.order_by("-id").defer("other").annotate(named=_named(actor))
    if actor.namespaces is not None:
        seen = Q(namespace__in=actor.namespaces) | Q(namespace="")
        events = events.filter(seen & (~Q(kind__startswith=ACCESS_PREFIX) | Q(actor=actor.name)))
    equal = {"actor": by, "namespace": namespace, "name": name, "node": node, "claim": claim}
    events = events.filter(**{column: value for column, value in equal.items() if value})
    if kind:
        events = events.filter(kind__startswith=kind) if kind.endswith(".") else events.filter(kind=kind)
    if allocation is not None:
        events = events.filter(allocation_id=allocation)
    if since is not None:
        events = events.filter(at__gte=since)
    if until is not None:
        events = events.filter(at__lt=until)
    if after_id is not None:
        events = events.filter(id__gt=after_id)
    return events


def _named(actor: Reader) -> F | Case | Value:
    """`Event.other` as far as the reader may know it."""
    if actor.namespaces is None:
        return F("other")
    if not actor.namespaces:
        return Value("", output_field=CharField())
    seen = When(other_namespace__in=actor.namespaces, then=F("other"))
    return Case(seen, default=Value(""), output_field=CharField())
