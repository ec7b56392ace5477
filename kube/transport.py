"""Sends requests to an API server over connections that each event loop keeps alive.

Coroutines await `send` on any event loop; threads pass a coroutine to `run`, which runs it on the process's loop
(`kube.event_loop`). The official client (`kube.configured`) reads the configuration and its credentials, and carries
watches and requests through a proxy.

Invariants:
- A request is sent once. Only after a 401, which surely was not applied, are the credentials reloaded and the request
  sent a second time.
- Each loop has at most `connections` requests under way; others wait, at most for the time of a request.
- Every request has a deadline, and is not sent after `before`.
- Errors are those of `kube.errors`; a write whose answer is lost is `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar

import structlog
import urllib3
from urllib3.exceptions import HTTPError

from kube import event_loop
from kube.configured import CONNECT_SECONDS, ConfigurationSource, Server
from kube.errors import NotConfigured, OutcomeUnknown, Unreachable, from_answer, from_transport
from kube.http1 import LOST, HttpConnection, Request, Response
from kube.waiting import about_to_wait

T = TypeVar("T")

CONNECTIONS: Final = 256
"""Most requests under way in an event loop."""
PROXIED: Final = 64
"""The same through a proxy, where each takes a thread."""
IDLE_SECONDS: Final = 60.0
"""A connection that was idle for longer is not used again: an API server closes it after 90 s, maybe just as a request
arrives."""
RELOAD_SECONDS: Final = 5.0
"""Refused credentials are reloaded at most this often."""

log = structlog.get_logger(__name__)


class Transport:
    """The connections of one process to one API server. Shared by its threads and event loops."""

    def __init__(
        self, source: ConfigurationSource, *, clock: Callable[[], float], connections: int = CONNECTIONS
    ) -> None:
        """Raises `NotConfigured`."""
        self._source = source
        self._connections = connections
        self._clock = clock
        self._lock = threading.Lock()
        self._reloaded_at = float("-inf")
        self._closed = False
        self._server = self._load()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._guard = threading.Lock()  # of the pools: no loop waits while a configuration is loaded
        self._proxied = ThreadPoolExecutor(PROXIED, thread_name_prefix="kube-proxied")

    async def send(self, request: Request) -> Response:
        """The whole answer, whatever its status.

        `seconds` bounds connecting (together with `CONNECT_SECONDS`), and then the answer to a write or each wait for
        bytes of a read. Raises `Unreachable`, `OutcomeUnknown`, and `Invalid` for what cannot be sent.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or self._pool(loop)
        for last in (False, True):
            server = self._server
            if server.may_have_ended:
                await pool.renewed(server)
            if pool.server is not server:
                pool.use(server)
            if server.proxied:
                answer = await self._by_proxy(pool, server, request)
            else:
                answer = await pool.exchanged(request, server.encode(request))
            if answer.status != 401 or last or not await loop.run_in_executor(None, self._reloaded, server):
                break
        return answer

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the process's loop and wait. Raises `OutcomeUnknown` when the process ends meanwhile."""
        about_to_wait()
        self._renew_credentials()
        try:
            return event_loop.run(work)
        except event_loop.LoopEnded as error:
            raise OutcomeUnknown(str(error)) from error

    @contextmanager
    def stream(self, target: str, *, silence_seconds: float) -> Iterator[urllib3.BaseHTTPResponse]:
        """The streamed answer to a GET; `silence_seconds` bounds each wait for bytes."""
        about_to_wait()
        request = Request(method="GET", target=target, seconds=silence_seconds)
        try:
            with closing(self._opened(request)) as response:
                if response.status >= 300:
                    body, headers = response.read(), response.headers
                    raise from_answer(
                        code=response.status, body=body, headers=headers, request=request.name, write=False
                    )
                yield response
        except HTTPError as error:
            raise from_transport(error, request=request.name, write=False) from error

    async def closed_within(self, seconds: float) -> bool:
        """Wait; True, at once, when the transport closes."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or self._pool(loop)
        try:
            async with asyncio.timeout(seconds):
                await pool.closed.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close idle connections of every loop; those in use close after their request."""
        self._closed = True
        with self._guard:
            pools = list(self._pools.values())
        for pool in pools:
            pool.close_soon()
        self._server.close()

    def close_here(self) -> None:
        """Close all connections of the loop that runs in this thread, which is about to end; it opens no others."""
        self._pool(asyncio.get_running_loop()).end()

    def _pool(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        with self._guard:
            pool = self._pools.get(loop)
            if pool is None:
                for ended in [one for one in self._pools if one.is_closed()]:
                    del self._pools[ended]
                size = min(self._connections, PROXIED) if self._server.proxied else self._connections
                pool = self._pools[loop] = _Pool(self._server, size=size)
                if self._closed:
                    pool.close()
            return pool

    async def _by_proxy(self, pool: _Pool, server: Server, request: Request) -> Response:
        await pool.acquire(request)
        latest = time.monotonic() + request.before - pool.loop.time()

        def send() -> urllib3.BaseHTTPResponse:
            if time.monotonic() > latest:
                raise _too_late(request)
            return server.by_manager(request, whole=True)

        try:
            response = await pool.loop.run_in_executor(self._proxied, send)
        except HTTPError as error:
            raise from_transport(error, request=request.name, write=request.write) from error
        finally:
            pool.release()
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
        return Response(response.status, response.data, pairs)

    def _opened(self, request: Request) -> urllib3.BaseHTTPResponse:
        for last in (False, True):
            server = self._server
            server.renew()
            response = server.by_manager(request, whole=False)
            if response.status != 401 or last or not self._reloaded(server):
                break
            response.close()
        return response

    def _renew_credentials(self) -> None:
        """Renew in the waiting thread, since a plugin may be slow. Requests try again after a failure."""
        try:
            self._server.renew()
        except Unreachable as error:
            log.warning("kube.credentials_unreadable", error=str(error))

    def _load(self) -> Server:
        return Server(self._source(), connections=PROXIED)

    def _reloaded(self, used: Server) -> bool:
        """Whether there are other credentials than those `used`: reloaded by another thread, or now."""
        with self._lock:
            if self._server is used:
                now = self._clock()
                if now - self._reloaded_at < RELOAD_SECONDS:
                    return False
                self._reloaded_at = now
                try:
                    self._server = self._load()  # requests under way end on the old one
                except NotConfigured as error:  # the file is being replaced: the refusal stands for this request
                    log.warning("kube.credentials_unreadable", error=str(error))
                    return False
                used.close()
                log.info("kube.credentials_reloaded")
            return True


class _Pool:
    """The connections of the running event loop. Used only in its thread, except `close_soon`."""

    def __init__(self, server: Server, *, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = server
        self.closed = asyncio.Event()
        self.ended = False
        self._slots = asyncio.Semaphore(size)
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._renewal: asyncio.Future[None] | None = None

    async def exchanged(self, request: Request, sent: bytes) -> Response:
        """Send a request over a connection of the pool. Bounds and errors as of `Transport.send`."""
        server = self.server
        await self.acquire(request)
        try:
            connection = self._taken() or await self._opened(server, request)
            if self.ended:
                connection.close()
                raise _ended(request)
            if self.loop.time() > request.before:
                self._give_back(connection, server)
                raise _too_late(request)
            write = request.write
            self._busy.add(connection)
            try:
                answer = await connection.send(sent, request.seconds, whole=write)
            except LOST as error:
                raise (OutcomeUnknown if write else Unreachable)(_text(error), request=request.name) from error
            finally:
                self._busy.discard(connection)
            self._give_back(connection, server)
            return answer
        finally:
            self.release()

    async def acquire(self, request: Request) -> None:
        """Wait for a slot, until `before`, or else for `seconds`. Raises `Unreachable`."""
        if self._slots.locked():
            try:
                until = request.before if request.before < math.inf else self.loop.time() + request.seconds
                async with asyncio.timeout_at(until):
                    await self._slots.acquire()
            except TimeoutError as error:
                raise _too_late(request) from error
        else:
            await self._slots.acquire()

    def release(self) -> None:
        """Free the slot."""
        self._slots.release()

    async def renewed(self, server: Server) -> None:
        """Renew its credentials in a thread, once for all concurrent requests. Raises `Unreachable`."""
        if self._renewal is None or self._renewal.done():
            self._renewal = self.loop.run_in_executor(None, server.renew)
        await asyncio.shield(self._renewal)

    def use(self, server: Server) -> None:
        """Use a reloaded configuration."""
        self.server = server
        self._close_idle()

    def close(self) -> None:
        """Close idle connections; those in use close after their request."""
        self.closed.set()
        self._close_idle()

    def end(self) -> None:
        """Close every connection, and open no others: the loop ends."""
        self.ended = True
        self.close()
        for connection in tuple(self._busy):
            connection.close()

    def close_soon(self) -> None:
        """`close` from any thread."""
        if event_loop.running_here() is self.loop:
            self.close()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.close)

    async def _opened(self, server: Server, request: Request) -> HttpConnection:
        if self.ended:
            raise _ended(request)
        try:
            async with asyncio.timeout(min(request.seconds, CONNECT_SECONDS)):
                _, connection = await self.loop.create_connection(
                    lambda: HttpConnection(self.loop, self._lost),
                    server.host,
                    server.port,
                    ssl=server.context,
                    server_hostname=server.server_name,
                )
        except (OSError, UnicodeError) as error:  # errors of TLS and TimeoutError are OSErrors
            raise Unreachable(_text(error), request=request.name) from error
        return connection

    def _taken(self) -> HttpConnection | None:
        """The idle connection that was used last."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self.loop.time() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: HttpConnection, server: Server) -> None:
        if connection.usable and server is self.server and not self.closed.is_set():
            connection.idle_since = self.loop.time()
            self._idle.append(connection)
        else:
            connection.close()

    def _lost(self, connection: HttpConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _ended(request: Request) -> Unreachable:
    return Unreachable("the event loop of the request ends", request=request.name)


def _too_late(request: Request) -> Unreachable:
    return Unreachable("not sent: its time was over before its turn came", request=request.name)
