"""A TCP proxy in front of PostgreSQL on loopback: it counts round trips, and delays what passes like a network does.

Used by the test of round trips and by `tests.bench.network`. A client waits for the ReadyForQuery that answers each of
its Query and Sync messages. A round trip begins with such a message while no answer to an earlier one is awaited, so a
pipeline is one round trip. Messages are counted, not pieces of the stream, which are cut as the machine likes. Format:
https://www.postgresql.org/docs/current/protocol-message-formats.html
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
ASKING = frozenset(b"QSF")
"""Query, Sync, FunctionCall."""
READY = ord("Z")
"""ReadyForQuery."""
ENCRYPTION = frozenset({80877103, 80877104})
"""SSLRequest and GSSENCRequest, which are answered by one byte."""


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
            session = _Session()
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            self._pass_on(client, server, session.asked)
            self._pass_on(server, client, session.answered)

    def _pass_on(self, source: socket.socket, target: socket.socket, note: Callable[[bytes], int]) -> None:
        if not self._delay_seconds:
            self._start(self._read, source, note, target.sendall, target)
            return
        late = _Late(target, self._delay_seconds)
        self._start(late.run)
        self._start(self._read, source, note, late.put, None)

    def _read(
        self,
        source: socket.socket,
        note: Callable[[bytes], int],
        put: Callable[[bytes], object],
        target: socket.socket | None,
    ) -> None:
        while True:
            try:
                found = source.recv(CHUNK_BYTES)
            except OSError:
                found = b""
            with self._lock:  # before it is passed on, so that no answer is noted before what it answers
                self._trips += note(found)
            try:
                put(found)
            except OSError:
                return
            if not found:
                if target is not None:
                    with contextlib.suppress(OSError):
                        target.shutdown(socket.SHUT_WR)
                return


class _Session:
    """One connection: `asked` and `answered` take what passes, and return how many round trips begin with it."""

    def __init__(self) -> None:
        self._client = self._server = b""
        self._is_starting = True
        self._awaited = 1  # the ReadyForQuery that ends the start
        self._single = 0
        """Answers of one byte that are awaited."""

    def asked(self, data: bytes) -> int:
        """Of the client."""
        self._client += data
        while self._is_starting and len(self._client) >= 8:
            size, code = (int.from_bytes(self._client[at : at + 4], "big") for at in (0, 4))
            if len(self._client) < size:
                return 0
            self._client = self._client[size:]
            self._is_starting = code in ENCRYPTION
            self._single += self._is_starting
        if self._is_starting:
            return 0
        kinds, self._client = _messages(self._client)
        begun = 0
        for _ in filter(ASKING.__contains__, kinds):
            begun += self._awaited == 0
            self._awaited += 1
        return begun

    def answered(self, data: bytes) -> int:
        """Of the server."""
        self._server += data
        single = min(self._single, len(self._server))
        self._single -= single
        kinds, self._server = _messages(self._server[single:])
        self._awaited -= kinds.count(READY)
        return 0


def _messages(data: bytes) -> tuple[list[int], bytes]:
    """The types of the whole messages, and what follows them."""
    kinds, at = [], 0
    while at + 5 <= len(data):
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        if end > len(data):
            break
        kinds.append(data[at])
        at = end
    return kinds, data[at:]


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
