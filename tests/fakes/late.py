"""Requests that the stand-in API server applies late: after their client gave up, was collected, or is gone.

    late = Late()
    server.faults.append(Fault("POST", r"/binding$", late=late))                  # the client waits, or gives up
    server.faults.append(Fault("POST", r"/binding$", late=late, drop="before"))   # the client is hung up on at once
    ...
    late.wait_held()     # the request is there
    late.release()       # it is applied now; back when its outcome is known
    assert late.outcomes == [409]

A load balancer that holds a request, an API server that stood still and a retry of another connection all
look like this to the sender: no answer, and no way to tell whether one will come.
"""

from __future__ import annotations

import threading

PATIENCE_SECONDS = 30.0


class Late:
    """Holds the requests of its fault back until `release()`, or each for `seconds`; then they are applied.

    A server that stops meanwhile drops what is held: then the request was never applied.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.outcomes: list[int] = []
        """Status codes of what was applied, or refused by then, in this order."""
        self._held = 0
        self._arrived = 0
        self._open = False
        self._dropped = False
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """How many requests wait here now."""
        with self._changed:
            return self._held

    def wait_held(self, count: int = 1) -> None:
        """Until so many requests came here, gone on or not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrived >= count, PATIENCE_SECONDS):
                raise TimeoutError(f"{self._arrived} of {count} requests came")

    def wait_settled(self, count: int = 1) -> None:
        """Until so many requests were applied or refused."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.outcomes) >= count, PATIENCE_SECONDS):
                raise TimeoutError(f"{len(self.outcomes)} of {count} requests were settled")

    def release(self) -> None:
        """Let every request that is or will be here go on; back when those that are here were applied or refused."""
        with self._changed:
            self._open = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._held == 0, PATIENCE_SECONDS):
                raise TimeoutError(f"{self._held} requests were not settled")

    def drop(self) -> None:
        """Let nothing that is here be applied any more."""
        with self._changed:
            self._dropped = True
            self._changed.notify_all()

    # -- of the server

    def enter(self) -> bool:
        """Wait; False: dropped, do not apply. True: apply, then say `leave`."""
        with self._changed:
            self._held += 1
            self._arrived += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._dropped, self.seconds)
            if self._dropped:
                self._held -= 1
                self._changed.notify_all()
            return not self._dropped

    def leave(self, code: int) -> None:
        """What became of a request that was let go on."""
        with self._changed:
            self._held -= 1
            self.outcomes.append(code)
            self._changed.notify_all()
