"""What the events page filters by. Called by `gpuplane.pages.events`."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from audit.choices import Kind
from audit.models import Event
from audit.selectors import Reader, event_list

GROUPS = {
    "nodes": ("node.", "device."),
    "claims": ("claim.",),
    "allocations": ("allocation.", "pod."),
    "access": ("access.",),
    "reconciling": ("reconcile.",),
}
"""Word of the filter → beginnings of kinds."""
MOST_WORDS = 6


def event_query(*, actor: Reader, group: str, search: str, namespace: str, node: str) -> QuerySet[Event]:
    """Events that the actor may read and that match, the newest first."""
    events = event_list(actor=actor, namespace=namespace, node=node)
    if group in GROUPS:
        events = events.filter(kind__in=[kind for kind in Kind.values if kind.startswith(GROUPS[group])])
    for word in search.split()[:MOST_WORDS]:
        said = Q(message__icontains=word) | Q(name__icontains=word) | Q(actor__icontains=word)
        events = events.filter(said | Q(named__icontains=word))
    return events
