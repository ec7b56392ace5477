"""Reads of models, runners, slots and requests, for REST, pages and the gateway.

Everybody who is signed in sees them: models are for the whole fleet. Whose a request is, is for its owner and admins
(`owner_shown`).
"""

from __future__ import annotations

import uuid

from django.db.models import Count, Q, QuerySet

from access.actors import Actor
from access.errors import NotFound
from inference.choices import HOLDING, State
from inference.models import Model, Request, Runner, Slot


def model_list() -> QuerySet[Model]:
    """All models with the numbers of their slots (`slots_live`, `slots_ready`)."""
    live = Count("slots", filter=Q(slots__state__in=HOLDING))
    ready = Count("slots", filter=Q(slots__state=State.READY))
    return Model.objects.annotate(slots_live=live, slots_ready=ready)


def model_get(name: str, *, locked: bool = False) -> Model:
    """One of them; `locked`: for the transaction, and without the numbers. Raises NotFound."""
    rows = Model.objects.select_for_update() if locked else model_list()
    model = rows.filter(name=name).first()
    if model is None:
        raise NotFound(f"there is no model {name[:200]}")
    return model


def runner_list() -> QuerySet[Runner]:
    """All runners, with their nodes and the number of their slots (`slots_live`)."""
    live = Count("slots", filter=Q(slots__state__in=HOLDING))
    return Runner.objects.select_related("node").annotate(slots_live=live)


def runner_get(node: str) -> Runner:
    """The runner of a node. Raises NotFound."""
    runner = runner_list().filter(node__name=node).first()
    if runner is None:
        raise NotFound(f"node {node[:253]} has no runner")
    return runner


def slot_list() -> QuerySet[Slot]:
    """All slots, the newest first, without what they logged."""
    return Slot.objects.select_related("runner").defer("log_tail")


def slot_get(slot_id: str) -> Slot:
    """One of them, with the end of its log. Raises NotFound."""
    slot = Slot.objects.select_related("runner").filter(pk=slot_id).first()
    if slot is None:
        raise NotFound(f"there is no slot {slot_id[:16]}")
    return slot


def request_list() -> QuerySet[Request]:
    """All requests, the newest first, with their accounts."""
    return Request.objects.select_related("user")


def request_get(request_id: uuid.UUID) -> Request:
    """One of them. Raises NotFound."""
    request = request_list().filter(pk=request_id).first()
    if request is None:
        raise NotFound(f"there is no request {request_id}")
    return request


def owner_shown(request: Request, actor: Actor) -> str | None:
    """The name of the request's account, for that account and for admins; None for others, and where there is none."""
    name = None if request.user is None else request.user.get_username()
    return name if actor.namespaces is None or name == actor.name else None
