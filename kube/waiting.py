"""What a process does before a thread of it waits for the API server, or for as long.

Called by `kube.connection` before each request of a thread, and before a what-if's process is waited for. A web process lets go of its database connection here: one
that waits for the API server keeps none from those who do not. Without it 64 binds that wait would hold 64
connections.
"""

from __future__ import annotations

from collections.abc import Callable


class _Before:
    """Nothing, until a process says otherwise."""

    call: Callable[[], None] | None = None


def before_waiting(call: Callable[[], None] | None) -> None:
    """Have it called, in the thread that is about to wait, before each request; None for nothing any more."""
    _Before.call = call


def about_to_wait() -> None:
    """A request to the API server is sent next."""
    if _Before.call is not None:
        _Before.call()
