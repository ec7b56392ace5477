"""Requests of an event loop over kept-alive sockets: what a bind does twice a pod, by the hundred at once and without a thread each.

Used by `kube.client` for whole answers of a server that is reached without a proxy, beside `kube.direct`, whose framing it shares.
urllib3 opens the connections (addresses, TLS, client certificates, verification), in a thread, since that waits. Kept true: one
request at a time on a socket; a socket is kept only after an answer that was read to its end; each request has a deadline, and is
not sent after the moment that its caller names; what goes wrong is told in urllib3's exceptions.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

import httptools
import urllib3
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from kube.direct import PIECE, Answer, checked, opened, request_bytes

_LATER: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Nothing to read, or no room to write, at this moment."""


class Evented:
    """The connections of one event loop to one server. Used in that loop's thread alone."""

    def __init__(self, pool: urllib3.HTTPConnectionPool, *, size: int) -> None:
        """`size`: requests under way at once, at most; others wait their turn."""
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(size)
        self._idle: list[_Socket] = []
        self._closed = False

    async def send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        connect: float,
        wait: float,
        before: float,
    ) -> Answer:
        """One request, once. `connect`: seconds to open a connection, `wait`: for the whole answer; `before`: it is not sent later, by the loop's clock.

        Raises urllib3's exceptions.
        """
        request = request_bytes(method, target, self._pool, headers, body)
        async with self._turns:
            one = self._idle.pop() if self._idle else await self._opened(connect)
            if self._loop.time() > before:
                self._give_back(one, keep=True)
                raise TooLate("its time was over before its turn came")
            try:
                answer = await one.ask(request, wait)
            except TimeoutError as error:
                raise ReadTimeoutError(self._pool, target, f"no answer within {wait:g} s") from error
            except (OSError, httptools.HttpParserError) as error:
                raise ProtocolError("Connection aborted.", error) from error
            self._give_back(one, keep=answer.keep)
            return checked(answer)

    def close(self) -> None:
        """Close idle sockets; those in use close when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _opened(self, seconds: float) -> _Socket:
        connection = await self._loop.run_in_executor(None, opened, self._pool, seconds)
        return _Socket(connection, self._loop, self._idle)

    def _give_back(self, one: _Socket, *, keep: bool) -> None:
        if keep and not self._closed and one.open:
            self._idle.append(one)
        else:
            one.close()


class TooLate(ProtocolError):
    """The request was not sent: the moment up to which it might be had passed."""


class _Socket:
    """One connection, which the loop reads whenever something comes. While idle, what comes is its end."""

    __slots__ = ("_answer", "_connection", "_future", "_idle", "_loop", "_rest", "_sock", "_timer", "open")

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop, idle: list[_Socket]) -> None:
        self._connection = connection
        self._sock = connection.sock
        self._sock.setblocking(False)
        self._loop = loop
        self._idle = idle
        self._answer: Answer | None = None
        self._future: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest = memoryview(b"")
        self.open = True
        loop.add_reader(self._sock.fileno(), self._readable)

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """Send, and read one answer to its end. Raises TimeoutError, OSError, httptools.HttpParserError; the socket is closed then."""
        self._answer = Answer()
        self._future = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._fail, TimeoutError())
        self._rest = memoryview(request)
        self._write()
        try:
            return await self._future
        finally:
            self._timer.cancel()
            if self._answer is not None:  # failed, or given up by the caller: what comes now belongs to nobody
                self.close()

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._connection.close()

    def _write(self) -> None:
        try:
            sent = self._sock.send(self._rest)
        except _LATER:
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        self._rest = self._rest[sent:]
        if self._rest:
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._write()

    def _readable(self) -> None:
        while self.open:
            try:
                piece = self._sock.recv(PIECE)
            except _LATER:
                return
            except OSError as error:
                self._fail(error)
                return
            if self._answer is None or not piece:
                self._fail(ConnectionResetError("the server closed the connection without an answer"))
                return
            try:
                self._answer.feed(piece)
            except httptools.HttpParserError as error:
                self._fail(error)
                return
            if self._answer.complete:
                answer, self._answer = self._answer, None
                if self._future is not None and not self._future.done():
                    self._future.set_result(answer)
                return

    def _fail(self, error: Exception) -> None:
        """The connection is of no more use: tell who waits, or leave the idle ones."""
        if self._answer is None:
            if self in self._idle:
                self._idle.remove(self)
            self.close()
        elif self._future is not None and not self._future.done():
            self._future.set_exception(error)
