"""Rate limits of agents' frames, well above what an agent sends.

Used by `nodes.live.ingest`, for sockets and posts alike; one for each table of samples. Invariants: a node has one
limit in a process, however many sessions it opens; a burst after a restart is taken; a session or post over the limit
ends with that reason, and no other does.
"""

from __future__ import annotations

from typing import Final

from agent.protocol import BadFrame

FRAMES_A_SECOND: Final = 10.0
"""An agent sends one sample a second, and changes now and then."""
FRAMES_AT_ONCE: Final = 200
CHANGES_A_SECOND: Final = 2.0
"""Frames that change the database (inventory, health, checkpoint), each in a transaction."""
CHANGES_AT_ONCE: Final = 20
RETRY_AFTER_SECONDS: Final = 1
"""The Retry-After of a post over the limit."""


class TooFast(BadFrame):
    """More frames than the limit."""

    reason = "too-fast"


class _Bucket:
    """A token bucket. `now`: monotonic seconds."""

    __slots__ = ("_at", "_left")

    def __init__(self, burst: int, now: float) -> None:
        self._left = float(burst)
        self._at = now

    def take(self, now: float, *, rate: float, burst: int) -> bool:
        """Take a token, of which `rate` come back a second, up to `burst`; whether there was one."""
        self._left = min(burst, self._left + (now - self._at) * rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RateLimits:
    """The limits of each node, of `most_nodes` at most; the one heard least recently leaves first."""

    def __init__(self, most_nodes: int) -> None:
        self._most = most_nodes
        self._of: dict[str, tuple[_Bucket, _Bucket]] = {}
        """Node → buckets of its frames and of its changes."""

    def take(self, node: str, now: float) -> None:
        """Count one frame of the node, `now` in monotonic seconds. Raises TooFast."""
        buckets = self._of.pop(node, None)
        if buckets is None:
            if len(self._of) >= self._most:
                del self._of[next(iter(self._of))]
            buckets = _Bucket(FRAMES_AT_ONCE, now), _Bucket(CHANGES_AT_ONCE, now)
        self._of[node] = buckets
        if not buckets[0].take(now, rate=FRAMES_A_SECOND, burst=FRAMES_AT_ONCE):
            raise TooFast(f"more than {FRAMES_A_SECOND:.0f} frames a second")

    def may_change(self, node: str, now: float) -> bool:
        """Whether a frame of the node that `take` counted may change the record."""
        buckets = self._of.get(node)
        return buckets is None or buckets[1].take(now, rate=CHANGES_A_SECOND, burst=CHANGES_AT_ONCE)
