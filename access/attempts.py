"""Failed sign-ins: counted where they are recorded, in the audit trail, so that every replica counts alike.

Called by `access.views`. Kept true: MOST failures of one name from one address within WINDOW make the
next attempts wait, from that address alone, so that nobody can lock somebody else out.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from audit.choices import Kind
from audit.models import Event

MOST = 8
WINDOW = timedelta(minutes=5)
LOOKED_AT = 200


def too_many_failures(*, username: str, address: str, now: datetime) -> bool:
    """Whether this name has failed too often from this address lately."""
    recent = Event.objects.filter(namespace="", name=username[:150], kind=Kind.SIGN_IN_FAILED, at__gt=now - WINDOW)
    seen = [event.data.get("address") for event in recent.order_by("-id")[:LOOKED_AT]]
    return seen.count(address) >= MOST
