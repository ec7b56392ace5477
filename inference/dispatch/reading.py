"""What a gateway reads: what became of its requests, and which models there are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from django.db.models import Q

from inference.choices import RequestState, State
from inference.dispatch.places import runtimes_name
from inference.dispatch.records import Place
from inference.models import Model, Request, Slot

AT_ONCE = 500


class Seen(msgspec.Struct, frozen=True):
    """A request as it is in the database. `place`: of one that runs and whose slot is still there."""

    state: str
    reason: str
    place: Place | None


def requests_seen(ids: Sequence[UUID]) -> dict[UUID, Seen]:
    """Those of these requests that there are."""
    found = {}
    for first in range(0, len(ids), AT_ONCE):
        for row in Request.objects.filter(pk__in=ids[first : first + AT_ONCE]).select_related("slot"):
            runs = row.state == RequestState.RUNNING and row.slot is not None
            place = place_of(row.slot) if runs and row.slot is not None else None
            found[row.pk] = Seen(row.state, row.reason, place)
    return found


def place_of(slot: Slot) -> Place:
    """Where requests of a slot are sent, whatever its state."""
    launch = slot.launch
    name = runtimes_name(launch.get("runtime", ""), launch.get("source", ""), slot.model_name, slot.lora)
    return Place(slot=slot.pk, address=slot.address, model_name=name)


def lost_requests(gateway_id: str) -> dict[UUID, tuple[str | None, str]]:
    """Running requests of the gateway whose slot has failed or is gone: the slot, if it is there, and the reason."""
    gone = Q(slot__isnull=True) | Q(slot__state__in=(State.FAILED, State.STOPPED))
    rows = Request.objects.filter(gateway=gateway_id, state=RequestState.RUNNING).filter(gone)
    return {
        pk: (slot_id, f"slot {slot_id} has {state}: {reason}" if state == State.FAILED else "its slot is gone")
        for pk, slot_id, state, reason in rows.values_list("pk", "slot_id", "slot__state", "slot__reason")
    }


def models_known() -> list[tuple[str, datetime]]:
    """Names of all models, and since when they are there."""
    return list(Model.objects.order_by("name").values_list("name", "created_at"))
