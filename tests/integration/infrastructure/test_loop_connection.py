"""The event loop's connection to PostgreSQL: rows as from every other, and what it does when the server does not."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from django.db import OperationalError

from inference.models import Gateway
from storage import loop_connection
from storage.clock import database_now
from storage.cursors import Query, rows_of
from storage.loop_connection import LoopConnection
from tests.databases import TestDatabase, backend_of, end_backend

pytestmark = pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
PID = Query("SELECT pg_backend_pid()", [])
SLEEPS = Query("SELECT pg_sleep(60)", [])
WRITES = "INSERT INTO inference_gateway (id, host, started_at, seen_at) VALUES (%s, '', %s, %s) RETURNING id"


@pytest.fixture
async def there(ledger_db: TestDatabase) -> AsyncIterator[LoopConnection]:
    """A connection that is made with the first statement."""
    found = LoopConnection()
    yield found
    await found.close()


@contextlib.asynccontextmanager
async def under_way(there: LoopConnection, query: Query) -> AsyncIterator[asyncio.Task[object]]:
    """The statement, once the server runs it."""
    pid = await backend_of(there)
    task: asyncio.Task[object] = asyncio.create_task(there.rows(query))

    def runs() -> bool:
        return bool(rows_of(Query("SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s", [pid]))[0][0])

    async with asyncio.timeout(10):
        while not await asyncio.to_thread(runs):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    yield task


async def test_rows_are_those_of_every_other_connection(there: LoopConnection) -> None:
    """Whatever their types, in whatever order they are asked for."""
    await backend_of(there)
    moment = datetime(2026, 11, 28, 12, 30, 1, 250, tzinfo=UTC)
    values = ["text", None, 7, 2**40, True, moment, uuid.UUID(int=5)]
    kinds = ("text", "text", "int", "bigint", "boolean", "timestamptz", "uuid")
    columns = ", ".join(f"%s::{kind}" for kind in kinds)
    queries = [
        Query(f"SELECT {columns}, '{{\"a\": 1}}'::jsonb, 'x%%'", values),
        Query("SELECT number FROM generate_series(1, %s) AS number", [3]),
        Query("SELECT number FROM generate_series(1, %s) AS number", [0]),
    ]
    for query in (*queries, *reversed(queries)):
        assert await there.rows(query) == await asyncio.to_thread(rows_of, query)


async def test_the_first_statement_finds_no_connection(there: LoopConnection) -> None:
    """It does not wait for one, and has changed nothing."""
    assert await there.rows(PID) is None
    assert await backend_of(there) == await backend_of(there)


async def test_a_refused_statement_has_changed_nothing(there: LoopConnection) -> None:
    """One that the server cannot read, and one that breaks a rule. The connection is made anew."""
    now = await asyncio.to_thread(database_now)
    before = await backend_of(there)
    assert await there.rows(Query("SELEC 1", [])) is None
    assert await backend_of(there) != before
    assert await there.rows(Query(WRITES, ["g1", now, now])) == [("g1",)]
    assert await there.rows(Query(WRITES, ["g1", now, now])) is None
    assert await asyncio.to_thread(lambda: [*Gateway.objects.values_list("pk", flat=True)]) == ["g1"]


async def test_more_than_the_socket_takes(there: LoopConnection) -> None:
    """Both ways."""
    await backend_of(there)
    text = "x" * 20_000_000
    assert await there.rows(Query("SELECT %s::text", [text])) == [(text,)]


async def test_an_idle_connection_that_the_server_ends(there: LoopConnection) -> None:
    """It is noticed before the next statement, which is not in doubt."""
    before = await backend_of(there)
    await asyncio.to_thread(end_backend, before)
    async with asyncio.timeout(30):
        while there._connection is not None:  # noqa: ASYNC110 - the server ends it after it said so
            await asyncio.sleep(0.01)
    assert await there.rows(PID) is None
    assert await backend_of(there) != before


async def test_a_connection_that_ends_under_a_statement(there: LoopConnection) -> None:
    """Nobody knows whether it was committed."""
    async with under_way(there, SLEEPS) as asked:
        await asyncio.to_thread(end_backend, await pid_asleep())
        with pytest.raises(OperationalError, match="closed the connection"):
            await asked
    await backend_of(there)


async def pid_asleep() -> int:
    query = Query("SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'", [])
    return int((await asyncio.to_thread(rows_of, query))[0][0])


async def test_a_server_that_does_not_answer(there: LoopConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement is given up, and may have been committed."""
    await backend_of(there)
    monkeypatch.setattr(loop_connection, "STATEMENT_SECONDS", 0.05)
    with pytest.raises(OperationalError, match="no answer in"):
        await there.rows(SLEEPS)
    monkeypatch.undo()
    await backend_of(there)


async def test_a_statement_that_is_broken_off(there: LoopConnection) -> None:
    """The next gets its own rows."""
    async with under_way(there, SLEEPS) as asked:
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    await backend_of(there)


async def test_a_statement_under_way_when_it_is_closed(there: LoopConnection) -> None:
    """Who waits for it is told."""
    async with under_way(there, SLEEPS) as asked:
        await there.close()
        with pytest.raises(OperationalError, match="was closed"):
            await asked
    await backend_of(there)


async def test_a_server_that_is_away(there: LoopConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again after a pause."""
    tries: list[int] = []
    works = loop_connection._connected

    async def away(parameters: dict[str, object], timezone: str) -> object:
        tries.append(1)
        return await works({**parameters, "port": "1"}, timezone)

    monkeypatch.setattr(loop_connection, "_connected", away)
    monkeypatch.setattr(loop_connection, "PAUSE_SECONDS", 600)
    assert await there.rows(PID) is None
    assert there._opening is not None
    await there._opening
    assert await there.rows(PID) is None
    assert tries == [1]
    there._open_after = 0.0
    monkeypatch.undo()
    await backend_of(there)


async def test_an_idle_connection_is_closed(there: LoopConnection) -> None:
    """Only one that is idle for long enough."""
    before = await backend_of(there)
    await there.rest(60)
    assert await backend_of(there) == before
    await there.rest(0)
    assert await there.rows(PID) is None
