"""How many frames one session may send: what an agent does, with plenty to spare.

Used by `nodes.live.ingest`. Kept true: a burst after a restart is taken; who goes on faster than that is told so, and only that session ends.
"""

from __future__ import annotations

from typing import Final

from agent.protocol import BadFrame

FRAMES_A_SECOND: Final = 10.0
"""An agent sends one sample a second, and now and then what changed."""
FRAMES_AT_ONCE: Final = 200


class TooFast(BadFrame):
    """More frames than any agent has reason to send."""

    reason = "too-fast"


class Pace:
    """One session's allowance. `now`: monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._left = float(FRAMES_AT_ONCE)
        self._at = now

    def take(self, now: float) -> None:
        """Count one frame. Raises TooFast."""
        self._left = min(FRAMES_AT_ONCE, self._left + (now - self._at) * FRAMES_A_SECOND)
        self._at = now
        if self._left < 1:
            raise TooFast(f"more than {FRAMES_A_SECOND:.0f} frames a second")
        self._left -= 1
