"""How many requests each slot runs, counted from the requests (every 5 s).

Called by `inference.tasks`. `Slot.active` decides whether a slot takes another request and whether it may go; whoever
begins or ends a request counts it in the transaction that moves the request. Invariants: a count that a killed process
left behind is put right; the slot is locked first, so no request begins or ends between the two reads.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count, Q

from inference.choices import HOLDING, RequestState
from inference.models import Request, Slot
from inference.wake import wake_requests, wake_slots
from storage.transactions import atomic_retry


def recount_active(*, now: datetime) -> list[str]:
    """Put wrong counts right; the ids of these slots."""
    running = Count("requests", filter=Q(requests__state=RequestState.RUNNING))
    rows = Slot.objects.filter(state__in=HOLDING).annotate(running=running).values_list("pk", "active", "running")
    return [pk for pk, active, counted in rows if active != counted and _recount(pk, now)]


@atomic_retry
def _recount(slot_id: str, now: datetime) -> bool:
    slot = Slot.objects.select_for_update().get(pk=slot_id)
    running = Request.objects.filter(slot_id=slot_id, state=RequestState.RUNNING).count()
    if running == slot.active:
        return False
    Slot.objects.filter(pk=slot_id).update(active=running, last_used_at=now, changed_at=now)
    wake_slots()
    wake_requests(slot.model_name)
    return True
