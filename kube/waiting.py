"""A hook that runs before a thread waits for the API server or for a what-if's process.

A web process releases its database connection in it: otherwise 64 waiting binds would hold 64 connections.
"""

from __future__ import annotations

from collections.abc import Callable


class _Before:
    call: Callable[[], None] | None = None


def before_waiting(call: Callable[[], None] | None) -> None:
    """Set the hook, which runs in the thread that is about to wait; None removes it."""
    _Before.call = call


def about_to_wait() -> None:
    """Run the hook."""
    if _Before.call is not None:
        _Before.call()
