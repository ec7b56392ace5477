"""A PostgreSQL connection of an event loop, for a statement whose rows a coroutine waits for.

psycopg connects, adapts values and reads rows; statements go by libpq's asynchronous functions (`psycopg.pq`). Beside a
thread that does the same this saves half a millisecond of a request that comes each 25 ms, twice as much as psycopg's
own coroutines (docs/benchmarks.md). Invariants:
- One statement is under way at a time, and is a transaction of its own.
- A connection that broke, or whose server refused a statement, is not used again; it is made anew in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
import structlog
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from storage.cursors import Query
from storage.postgresql_cursor import numbered

OPEN_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 1.0
"""Between two tries to connect."""
STATEMENT_SECONDS: Final = 20.0
"""After that the server is taken for gone."""
_GOOD: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})

log = structlog.get_logger(__name__)


class _NotRun(Exception):
    """The server refused the statement."""


class LoopConnection:
    """The connection. Used on one event loop."""

    def __init__(self) -> None:
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._open_after = 0.0
        self._used_at = 0.0
        self._prepared: dict[str, bytes] = {}
        self._socket: int | None = None  # that the loop watches
        self._answer: asyncio.Future[pq.abc.PGresult] | None = None
        self._result: pq.abc.PGresult | None = None

    async def rows(self, query: Query) -> list[Any] | None:
        """The rows of a statement; None where it changed nothing: no connection at the moment, or the server refused.

        Raises OperationalError where the connection broke meanwhile: the server may have committed the statement, or
        commit it still.
        """
        connection = self._connection
        if connection is None:
            self._open()
            return None
        self._used_at = time.monotonic()
        server, transformer = connection.pgconn, Transformer(connection)
        values = transformer.dump_sequence(query.values, [PyFormat.TEXT] * len(query.values))
        try:
            async with asyncio.timeout(STATEMENT_SECONDS):
                name = self._prepared.get(query.text) or await self._prepare(server, query.text)
                result = await self._sent(server, lambda: server.send_query_prepared(name, values))
        except _NotRun as refused:
            self._drop(str(refused))
            return None
        except (psycopg.OperationalError, TimeoutError) as error:
            why = str(error).strip() or f"no answer in {STATEMENT_SECONDS:.0f} s"
            self._drop(why)
            raise OperationalError(why) from error
        except asyncio.CancelledError:
            self._drop("a statement was broken off")
            raise
        transformer.set_pgresult(result)
        found: list[Any] = transformer.load_rows(0, result.ntuples, tuple)
        return found

    async def rest(self, idle_seconds: float) -> None:
        """Close the connection where nothing was asked for so long."""
        if self._connection is not None and time.monotonic() - self._used_at >= idle_seconds:
            await self.close()

    async def close(self) -> None:
        """Close the connection; a statement under way is in doubt. The next one makes another."""
        if self._opening is not None:
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._opening
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(psycopg.OperationalError("the connection was closed"))
        self._drop("")

    def _open(self) -> None:
        if self._opening is None and time.monotonic() >= self._open_after:
            self._opening = asyncio.create_task(self._opened())

    async def _opened(self) -> None:
        """Connect as Django does."""
        django: Any = connections[DEFAULT_DB_ALIAS]
        parameters = django.get_connection_params()
        del parameters["cursor_factory"]
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                connection = await _connected(parameters, django.timezone_name)
        except (psycopg.Error, TimeoutError) as error:
            self._open_after = time.monotonic() + PAUSE_SECONDS
            log.warning("loop_connection.not_connected", error=str(error) or f"not in {OPEN_SECONDS:.0f} s")
            return
        finally:
            self._opening = None
        connection.pgconn.nonblocking = 1
        self._connection, self._prepared, self._used_at = connection, {}, time.monotonic()
        self._socket = connection.pgconn.socket
        asyncio.get_running_loop().add_reader(self._socket, self._read, connection.pgconn)

    def _drop(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if why:
            log.warning("loop_connection.dropped", why=why)
        self._unwatch()
        connection.pgconn.finish()

    def _unwatch(self) -> None:
        """At once where the connection breaks: libpq has closed the socket, and its number may be another's soon."""
        socket, self._socket = self._socket, None
        if socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(socket)
            loop.remove_writer(socket)

    async def _prepare(self, server: pq.abc.PGconn, text: str) -> bytes:
        """The name of the statement on the server, which finds the types of its parameters."""
        name = b"loop%d" % len(self._prepared)
        await self._sent(server, lambda: server.send_prepare(name, numbered(text)))
        self._prepared[text] = name
        return name

    async def _sent(self, server: pq.abc.PGconn, send: Callable[[], None]) -> pq.abc.PGresult:
        """What the server answers. Raises _NotRun, psycopg.OperationalError."""
        loop = asyncio.get_running_loop()
        answer = self._answer = loop.create_future()
        self._result = None
        send()
        if server.flush():  # more than the socket takes
            loop.add_writer(server.socket, self._write, server)
        result: pq.abc.PGresult = await answer
        if result.status not in _GOOD:
            raise _NotRun(result.error_message.decode("utf-8", "replace").strip())
        return result

    def _write(self, server: pq.abc.PGconn) -> None:
        """Send what is left."""
        try:
            if server.flush():
                return
        except psycopg.OperationalError as error:
            self._broke(error)
            return
        asyncio.get_running_loop().remove_writer(server.socket)

    def _read(self, server: pq.abc.PGconn) -> None:
        """Take what has come; also what nobody waits for, such as the end of the connection."""
        try:
            server.consume_input()
            while not server.is_busy():
                result = server.get_result()
                if result is None:
                    break
                self._result = result
            else:
                return
        except psycopg.OperationalError as error:
            self._broke(error)
            return
        if self._result is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(self._result)

    def _broke(self, error: psycopg.OperationalError) -> None:
        self._unwatch()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)  # who waits for it drops the connection
        else:
            self._drop(str(error).strip())


async def _connected(parameters: dict[str, Any], timezone: str) -> psycopg.AsyncConnection[Any]:
    """A connection as Django configures it. Raises psycopg.Error."""
    connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
    try:
        await connection.execute("SELECT set_config('TimeZone', %s, false)", [timezone])
    except BaseException:
        await connection.close()
        raise
    return connection
