"""Threads of listeners and PostgreSQL's pool: who keeps a connection, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import OperationalError, connection

from gpuplane.listeners.threads import Lane
from tests.databases import TestDatabase, end_backend
from tests.gateway_client import until

pytestmark = pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def lent() -> int:
    """Connections of the pool that somebody has."""
    default: Any = connection
    default.pool.wait()
    stats = default.pool.get_stats()
    return int(stats["pool_size"] - stats["pool_available"])


@pytest.fixture
async def opened(ledger_db: TestDatabase) -> None:
    """The pool opens with the first connection."""

    def first() -> None:
        backend()
        connection.close()

    await asyncio.to_thread(first)


@pytest.mark.parametrize("keeps", [True, False])
async def test_until_when_a_lane_has_a_connection(opened: None, keeps: bool) -> None:
    """The pool hears of what comes back in a thread of its own."""
    until(lambda: lent() == 0)
    lane = Lane("lane", threads=1, waiting=4, keeps_connection=keeps)
    found = {await lane.run(backend) for _ in range(4)}
    until(lambda: lent() == keeps)
    assert not keeps or len(found) == 1
    lane.shutdown()
    until(lambda: lent() == 0)


async def test_a_lane_that_rests(opened: None) -> None:
    """An idle thread has no connection that could get stale."""
    lane = Lane("lane", threads=1, waiting=4, keeps_connection=True)
    await lane.run(backend)
    await lane.rest(3600)
    assert lent() == 1
    await lane.rest(0)
    until(lambda: lent() == 0)
    await lane.rest(0)  # once more does nothing
    await lane.run(backend)
    lane.shutdown()
    until(lambda: lent() == 0)


async def test_a_kept_connection_that_breaks(opened: None) -> None:
    """One call fails, the next has another."""
    lane = Lane("lane", threads=1, waiting=4, keeps_connection=True)
    first = await lane.run(backend)
    await asyncio.to_thread(end_backend, first)
    with pytest.raises(OperationalError):
        await lane.run(backend)
    assert await lane.run(backend) != first
    lane.shutdown()
