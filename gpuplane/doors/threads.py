"""Threads that speak to the database on behalf of the plain doors, their connections kept open.

Kept true: after each call a broken or outdated connection is closed (one from PostgreSQL's pool goes
back to it), so the next call starts clean; SQLite's stay open, as opening one costs a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
R = TypeVar("R")

WORKERS = 8
BINDERS = 64
"""Binds by the saga spend their time waiting for the API server; in a pool of their own, since no filter may queue behind them."""

REVIEWERS = 4
"""Ask the API server whose an agent's token is, in a pool of their own too: when it is slow, a thousand agents that come again wait, and nobody else."""


def workers(name: str, count: int = WORKERS) -> ThreadPoolExecutor:
    """A pool for `in_thread`."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)


async def in_thread(executor: Executor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that uses the ORM without holding the event loop."""
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: _tidied(function, *args, **kwargs))


def _tidied(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(*args, **kwargs)
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()
