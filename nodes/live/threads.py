"""Database work of the live path, off the event loop.

A small pool of its own: a burst of inventories after a restart neither blocks the loop nor takes the
threads that requests use. Kept true: each call starts and ends with usable database connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import close_old_connections

Result = TypeVar("Result")

_POOL = ThreadPoolExecutor(max_workers=2, thread_name_prefix="agents-database")


async def in_database_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in the pool; its errors come out here."""

    def run() -> Result:
        close_old_connections()
        try:
            return work()
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_POOL, run)
