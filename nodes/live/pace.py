"""How many frames one node's agent may send: what an agent does, with plenty to spare.

Used by `nodes.live.ingest`, for sockets and posts alike; one a table of samples. Kept true: a node has one allowance in a process, however
many sessions it opens and by whichever way its frames come; a burst after a restart is taken; who goes on faster than that is told so, and
only that session or post ends.
"""

from __future__ import annotations

from typing import Final

from agent.protocol import BadFrame

FRAMES_A_SECOND: Final = 10.0
"""An agent sends one sample a second, and now and then what changed."""
FRAMES_AT_ONCE: Final = 200
CHANGES_A_SECOND: Final = 2.0
"""Frames that change the record (inventory, health, checkpoint): each is a transaction, which others wait for."""
CHANGES_AT_ONCE: Final = 20
RETRY_AFTER_SECONDS: Final = 1
"""What a post that came too fast is told to wait."""


class TooFast(BadFrame):
    """More frames than any agent has reason to send."""

    reason = "too-fast"


class Pace:
    """One node's allowance. `now`: monotonic seconds."""

    __slots__ = ("_at", "_changes", "_changes_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = float(FRAMES_AT_ONCE)
        self._changes = float(CHANGES_AT_ONCE)
        self._at = self._changes_at = now

    def may_change(self, now: float) -> bool:
        """Count one frame that changes the record; whether it may."""
        self._changes = min(CHANGES_AT_ONCE, self._changes + (now - self._changes_at) * CHANGES_A_SECOND)
        self._changes_at = now
        if self._changes < 1:
            return False
        self._changes -= 1
        return True

    def take(self, now: float) -> None:
        """Count one frame. Raises TooFast."""
        self._left = min(FRAMES_AT_ONCE, self._left + (now - self._at) * FRAMES_A_SECOND)
        self._at = now
        if self._left < 1:
            raise TooFast(f"more than {FRAMES_A_SECOND:.0f} frames a second")
        self._left -= 1


class Paces:
    """Every node's allowance, of so many nodes at most; the one that spoke longest ago leaves first, which by then has all of it again."""

    def __init__(self, most_nodes: int) -> None:
        self._most = most_nodes
        self._of: dict[str, Pace] = {}

    def take(self, node: str, now: float) -> None:
        """Count one frame of the node, `now` in monotonic seconds. Raises TooFast."""
        pace = self._of.pop(node, None)
        if pace is None:
            if len(self._of) >= self._most:
                del self._of[next(iter(self._of))]
            pace = Pace(now)
        self._of[node] = pace
        pace.take(now)

    def may_change(self, node: str, now: float) -> bool:
        """Whether a frame of the node that `take` counted may change the record."""
        pace = self._of.get(node)
        return pace is None or pace.may_change(now)
