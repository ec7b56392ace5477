"""What people do to models and slots.

Called by REST and pages. Models are for the whole fleet, and what their arguments say runs on GPU nodes: admins alone
write them. Invariants: a change that a running slot would have to be started anew for raises `Model.revision`, and the
loop lets the slots of the revision before go once they have no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError

from access.actors import Actor
from access.errors import BadInput, Conflict
from audit.choices import EventKind
from audit.services import record
from claims.services import merged
from inference.choices import WANTED, State
from inference.gguf_headers import packed_header
from inference.model_fields import WITHOUT_RESTART, read_fields, shown_fields
from inference.models import Model, Slot
from inference.selectors import model_get
from inference.transitions import slot_moved
from inference.wake import wake_slots
from storage.transactions import atomic_retry


def model_create(*, body: object, actor: Actor, now: datetime) -> Model:
    """A new model. Raises BadInput, NotAllowed, Conflict where the name is taken."""
    actor.require_admin()
    return _create(read_fields(body), actor, now)


@atomic_retry
def _create(columns: Mapping[str, Any], actor: Actor, now: datetime) -> Model:
    model = Model(**columns, created_by=actor.name, created_at=now, changed_at=now)
    try:
        model.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"there is a model {model.name} already") from error
    _record(EventKind.MODEL_CREATED, model, f"model {model.name} was created", actor, now)
    wake_slots()
    return model


def model_replace(*, name: str, body: object, actor: Actor, now: datetime) -> Model:
    """Replace what is said of the model; what is not given has its default. Raises BadInput, NotAllowed, NotFound."""
    actor.require_admin()
    columns = read_fields(body)
    if columns["name"] != name:
        raise BadInput(f"the model is {name}; it cannot be renamed", field="name", rule="immutable")
    return _write(name, lambda _: columns, actor, now)


def model_patch(*, name: str, patch: object, actor: Actor, now: datetime) -> Model:
    """Apply a JSON merge patch (RFC 7386). Raises as `model_replace` does."""
    actor.require_admin()
    if not isinstance(patch, Mapping):
        raise BadInput("a merge patch must be an object", rule="type")
    if patch.get("name", name) != name:
        raise BadInput(f"the model is {name}; it cannot be renamed", field="name", rule="immutable")
    return _write(name, lambda model: read_fields(merged(shown_fields(model), patch)), actor, now)


@atomic_retry
def _write(name: str, columns_of: Any, actor: Actor, now: datetime) -> Model:
    model = model_get(name, locked=True)
    columns: Mapping[str, Any] = columns_of(model)
    changed = sorted(key for key, value in columns.items() if getattr(model, key) != value)
    if not changed:
        return model
    for key in changed:
        setattr(model, key, columns[key])
    if "gguf" in changed:
        model.gguf_header = None
    if not WITHOUT_RESTART.issuperset(changed):
        model.revision += 1
    model.changed_at = now
    model.save()
    _record(EventKind.MODEL_CHANGED, model, f"model {name} was changed: {', '.join(changed)}", actor, now)
    wake_slots()
    return model


@atomic_retry
def model_delete(*, name: str, actor: Actor, now: datetime) -> None:
    """Delete the model; its slots go once they have no request. Raises NotAllowed, NotFound."""
    actor.require_admin()
    model = model_get(name, locked=True)
    _record(EventKind.MODEL_DELETED, model, f"model {name} was deleted", actor, now)
    model.delete()
    wake_slots()


@atomic_retry
def model_header_put(*, name: str, beginning: bytes, actor: Actor, now: datetime) -> Model:
    """Keep the header of the model's GGUF file, by the file's first megabytes. Raises GgufInvalid, a BadInput."""
    actor.require_admin()
    packed = packed_header(beginning)
    model = model_get(name, locked=True)
    if model.gguf_header is not None and bytes(model.gguf_header) == packed:
        return model
    model.gguf_header = packed
    model.revision += 1
    model.changed_at = now
    model.save()
    _record(EventKind.MODEL_CHANGED, model, f"the file of model {name} was read", actor, now)
    wake_slots()
    return model


@atomic_retry
def slot_stop(*, slot: Slot, actor: Actor, now: datetime) -> Slot:
    """Let the slot go once it has no request; where it is needed, another one is planned. Raises Conflict."""
    actor.require_operator()
    locked = Slot.objects.select_for_update().get(pk=slot.pk)
    if locked.state not in WANTED:
        raise Conflict(f"the slot is {locked.state} already")
    slot_moved(locked, State.DRAINING, now=now, reason=f"stopped by {actor.name}", actor=actor.name)
    locked.refresh_from_db()
    return locked


def _record(kind: EventKind, model: Model, message: str, actor: Actor, now: datetime) -> None:
    record(kind=kind, message=message, actor=actor.name, now=now, name=model.name, data={"revision": model.revision})
