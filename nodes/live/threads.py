"""Database work of the live path, in a small thread pool of its own: a burst of inventories after a restart neither
blocks the event loop nor takes the threads of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from channels.db import database_sync_to_async

Result = TypeVar("Result")

_POOL = ThreadPoolExecutor(max_workers=2, thread_name_prefix="agents-database")


async def in_database_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in the pool, with usable database connections; its errors come out here."""
    result: Result = await database_sync_to_async(work, thread_sensitive=False, executor=_POOL)()
    return result
