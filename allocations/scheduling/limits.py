"""Time limits of binds, and those of garbage collection that follow from them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.conf import settings

REQUEST_SECONDS: Final = 5.0
"""Time-out of one request to the API server within a bind: as much to connect, and as much for the answer."""
BIND_DEADLINE: Final = timedelta(seconds=20)
"""No attempt sends a Binding later than this after it began."""
COLLECTING_DEADLINE: Final = timedelta(seconds=1)
"""Collection sends a Binding for so long where it is refused for the moment, and again at a later run."""
CLOCKS_APART: Final = timedelta(seconds=2)
"""For clocks of two processes that run apart within a bind, and for the time between its last check and sending."""
RESERVED_LIMIT: Final = BIND_DEADLINE + timedelta(seconds=2 * REQUEST_SECONDS) + CLOCKS_APART
"""The attempt at an older reservation has ended: its deadline and the time-outs of its last request have passed."""


def reservation_seconds() -> int:
    """How much longer a bind lasts that waits for a reservation pod, and how much later collection takes it up."""
    return int(settings.GPUPLANE_RESERVATION_SECONDS)


PAUSE_SECONDS: Final = 0.2
"""Between two sendings of the same Binding."""
SHUT_OUT_TRIES: Final = 3
"""Times that a pod which changes meanwhile is written to again."""
LOOK_SECONDS: Final = 2.0
"""How long a check that the attempt was not overtaken holds. A Binding sent until then carries the version of the pod
that filter saw, so that a write to the pod shuts it out.
"""
