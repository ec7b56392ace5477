"""States of scaling requests and of their triggers, and the moves between them."""

from collections.abc import Mapping
from typing import Final

from django.db.models import TextChoices


class RequestState(TextChoices):
    """How far the nodes of a scaling request are: as far as the one that is furthest behind."""

    WANTED = "wanted", "Wanted"
    TRIGGERED = "triggered", "Triggered"
    LAUNCHING = "launching", "Launching"
    REGISTERED = "registered", "Registered"
    READY = "ready", "Ready"
    SERVED = "served", "Served"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


ACTIVE: Final = (
    RequestState.WANTED,
    RequestState.TRIGGERED,
    RequestState.LAUNCHING,
    RequestState.REGISTERED,
    RequestState.READY,
)
"""In the order in which they follow each other."""
ENDED: Final = (RequestState.SERVED, RequestState.FAILED, RequestState.CANCELLED)

EDGES: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    **{
        state: frozenset({*ACTIVE, *ENDED}) - {state}  # a node that is wanted more, or lost, takes it back
        for state in ACTIVE
    },
    **{state: frozenset() for state in ENDED},
}
"""An ended request stays as it ended; a later need makes a new one."""


class TriggerState(TextChoices):
    """One node that is wanted."""

    WANTED = "wanted", "Wanted"
    CREATED = "created", "Trigger pod created"
    LAUNCHING = "launching", "NodeClaim created"
    REGISTERED = "registered", "Node registered"
    READY = "ready", "Node ready"
    SERVED = "served", "Served"
    FAILED = "failed", "Failed"
    WITHDRAWN = "withdrawn", "Withdrawn"


COMING: Final = (
    TriggerState.WANTED,
    TriggerState.CREATED,
    TriggerState.LAUNCHING,
    TriggerState.REGISTERED,
    TriggerState.READY,
)
TAKEN_UP: Final = (TriggerState.LAUNCHING, TriggerState.REGISTERED, TriggerState.READY)
"""Karpenter makes, or has made, the node."""

REQUEST_STATE_OF: Final[Mapping[TriggerState, RequestState]] = {
    TriggerState.WANTED: RequestState.WANTED,
    TriggerState.CREATED: RequestState.TRIGGERED,
    TriggerState.LAUNCHING: RequestState.LAUNCHING,
    TriggerState.REGISTERED: RequestState.REGISTERED,
    TriggerState.READY: RequestState.READY,
    TriggerState.SERVED: RequestState.SERVED,
}

TRIGGER_EDGES: Final[Mapping[TriggerState, frozenset[TriggerState]]] = {
    TriggerState.WANTED: frozenset({TriggerState.CREATED, TriggerState.FAILED, TriggerState.WITHDRAWN}),
    TriggerState.CREATED: frozenset({*TAKEN_UP, TriggerState.WANTED, TriggerState.FAILED, TriggerState.WITHDRAWN}),
    TriggerState.LAUNCHING: frozenset(
        {TriggerState.REGISTERED, TriggerState.READY, TriggerState.FAILED, TriggerState.WITHDRAWN}
    ),
    TriggerState.REGISTERED: frozenset({TriggerState.READY, TriggerState.FAILED, TriggerState.WITHDRAWN}),
    TriggerState.READY: frozenset({TriggerState.SERVED, TriggerState.FAILED, TriggerState.WITHDRAWN}),
    TriggerState.SERVED: frozenset(),
    TriggerState.FAILED: frozenset(),
    TriggerState.WITHDRAWN: frozenset(),
}


class ShapeSource(TextChoices):
    """Where the shape of a pool's nodes is known from."""

    UNKNOWN = "", "Unknown"
    STATED = "nodepool", "NodePool"
    SEEN = "inventory", "Inventory"
    OPERATOR = "operator", "Operator"


class Step(TextChoices):
    """Steps of a node that is made, each with the time since the one before."""

    CREATED = "created", "NodeClaim created"
    LAUNCHED = "launched", "Launched"
    REGISTERED = "registered", "Registered"
    INITIALIZED = "initialized", "Initialized"
    READY = "ready", "Ready"
    INVENTORY = "inventory", "Inventory"
