"""Reads of events.

Invariants: nobody reads an event of a namespace that they do not see; events about access (accounts, sign-ins) are for
admins, except one's own; `Event.other` is read by those alone who see its namespace.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from django.db.models import Case, CharField, F, Q, QuerySet, Value, When

from audit.choices import EventKind
from audit.models import Event

ACCESS_PREFIX = "access."
GROUPS = {
    "nodes": ("node.", "device."),
    "claims": ("claim.",),
    "allocations": ("allocation.", "pod."),
    "reservations": ("reservation.",),
    "access": ("access.",),
    "reconciling": ("reconcile.",),
}
"""Group → prefixes of kinds."""
MOST_WORDS = 6


class Reader(Protocol):
    """An `access.actors.Actor`, which this room may not import."""

    @property
    def name(self) -> str:
        """Their user name."""

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Namespaces that they see; None for all."""


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
) -> QuerySet[Event]:
    """Events that the actor may read, newest first. Empty filters match all; `kind` may be a prefix (`claim.`)."""
    events = Event.objects.order_by("-id").defer("other").annotate(named=_named(actor))
    if actor.namespaces is not None:
        seen = Q(namespace__in=actor.namespaces) | Q(namespace="")
        events = events.filter(seen & (~Q(kind__startswith=ACCESS_PREFIX) | Q(actor=actor.name)))
    lookups: dict[str, Any] = {
        "kind__startswith" if kind.endswith(".") else "kind": kind,
        "actor": by,
        "namespace": namespace,
        "name": name,
        "node": node,
        "claim": claim,
        "allocation_id": allocation,
        "at__gte": since,
        "at__lt": until,
    }
    return events.filter(**{lookup: value for lookup, value in lookups.items() if value})


def event_query(*, actor: Reader, group: str, search: str, namespace: str, node: str) -> QuerySet[Event]:
    """Events that the actor may read and that match, the newest first."""
    events = event_list(actor=actor, namespace=namespace, node=node)
    if group in GROUPS:
        events = events.filter(kind__in=[kind for kind in EventKind.values if kind.startswith(GROUPS[group])])
    for word in search.split()[:MOST_WORDS]:
        matches = Q(message__icontains=word) | Q(name__icontains=word) | Q(actor__icontains=word)
        events = events.filter(matches | Q(named__icontains=word))
    return events


def _named(actor: Reader) -> F | Case | Value:
    """`Event.other` as far as the reader may know it."""
    if actor.namespaces is None:
        return F("other")
    if not actor.namespaces:
        return Value("", output_field=CharField())
    seen = When(other_namespace__in=actor.namespaces, then=F("other"))
    return Case(seen, default=Value(""), output_field=CharField())
