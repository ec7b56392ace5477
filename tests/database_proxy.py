"""A TCP proxy in front of PostgreSQL on loopback: it counts round trips, and delays what passes like a network does.

Used by the test of round trips and by `tests.bench.network`. A round trip begins where a client sends after its server
has sent: what a client sends without an answer in between is one round trip. PostgreSQL keeps its answers until it has
read a Sync or a Flush, so a pipeline of psycopg is one round trip however its writes are cut.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES = 1 << 16


class DatabaseProxy:
    """The proxy, by `with`. `url`: of the database behind it; `delay_seconds`: added in each direction."""

    def __init__(self, url: str, *, delay_seconds: float = 0.0) -> None:
        self._parts = urlsplit(url)
        self._delay_seconds = delay_seconds
        self._lock = threading.Lock()
        self._trips = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # wakes `accept`
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for one in self._sockets:
            one.close()

    @property
    def url(self) -> str:
        """The database's URL through the proxy."""
        at = self._parts
        port = self._listening.getsockname()[1]
        return urlunsplit(at._replace(netloc=f"{at.username}:{at.password}@127.0.0.1:{port}"))

    @property
    def round_trips(self) -> int:
        """Round trips of all connections so far."""
        with self._lock:
            return self._trips

    def _start(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]  # own methods
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection((self._parts.hostname or "", self._parts.port or 5432))
            turn = _Turn()
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            self._pass_on(client, server, turn, asks=True)
            self._pass_on(server, client, turn, asks=False)

    def _pass_on(self, source: socket.socket, target: socket.socket, turn: _Turn, *, asks: bool) -> None:
        if not self._delay_seconds:
            self._start(self._read, source, turn, asks, target.sendall, target)
            return
        late = _Late(target, self._delay_seconds)
        self._start(late.run)
        self._start(self._read, source, turn, asks, late.put, None)

    def _read(
        self,
        source: socket.socket,
        turn: _Turn,
        asks: bool,
        put: Callable[[bytes], object],
        target: socket.socket | None,
    ) -> None:
        while True:
            try:
                found = source.recv(CHUNK_BYTES)
            except OSError:
                found = b""
            if found:
                self._note(turn, asks=asks)
            try:
                put(found)
            except OSError:
                return
            if not found:
                if target is not None:
                    with contextlib.suppress(OSError):
                        target.shutdown(socket.SHUT_WR)
                return

    def _note(self, turn: _Turn, *, asks: bool) -> None:
        with self._lock:
            if asks and not turn.asking:
                self._trips += 1
            turn.asking = asks


class _Turn:
    """Of one connection: whether the client sent last."""

    def __init__(self) -> None:
        self.asking = False


class _Late:
    """Sends what is put a while later, in order; nothing is the end."""

    def __init__(self, target: socket.socket, seconds: float) -> None:
        self._target = target
        self._seconds = seconds
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._put = threading.Semaphore(0)

    def put(self, found: bytes) -> None:
        """Send this later."""
        self._waiting.append((time.monotonic() + self._seconds, found))
        self._put.release()

    def run(self) -> None:
        """Send, until the end."""
        while True:
            self._put.acquire()
            due, found = self._waiting.popleft()
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            with contextlib.suppress(OSError):
                if not found:
                    self._target.shutdown(socket.SHUT_WR)
                    return
                self._target.sendall(found)
