"""A server that answers the n-th request as its script says: what a client of sockets makes of it.

For unit tests of `kube.transport`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\nok"

WHOLE_ANSWERS = [
    pytest.param([OK], 200, b"ok", id="in one piece"),
    pytest.param([OK[:9], OK[9:30], OK[30:]], 200, b"ok", id="in pieces"),
    pytest.param(
        [b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"],
        201,
        b"abcde",
        id="in chunks",
    ),
    pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b"", id="without a body"),
    pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], 200, b"ok", id="after a continue"),
]
"""(pieces as they come, status, body): answers that a client reads to their end."""


class Script:
    """A server that answers the n-th request with the n-th of `answers`, in the pieces given; None hangs up instead."""

    def __init__(self, *answers: list[bytes] | None, hang_up_after: int = 0) -> None:
        self.answers = list(answers)
        self.hang_up_after = hang_up_after
        self.requests: list[bytes] = []
        self.connections = 0
        self.hung_up = threading.Event()
        self.asked = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._taken: socket.socket | None = None
        self._closing = False

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The server, by its address. At the end it hangs up on a client that has not."""
        self._thread.start()
        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            self._closing = True
            if self._taken is not None:
                with suppress(OSError):  # it is closed already
                    self._taken.shutdown(socket.SHUT_RDWR)
            socket.create_connection(("127.0.0.1", self.port)).close()
            self._thread.join(10)
            self._listener.close()

    def _serve(self) -> None:
        while not self._closing:
            taken, _ = self._listener.accept()
            self.connections += 1
            self._taken = taken
            with taken:
                while self.answers and self._one(taken):
                    if len(self.requests) == self.hang_up_after:
                        break
            self.hung_up.set()

    def _one(self, taken: socket.socket) -> bool:
        request = taken.recv(1 << 16)
        if not request:
            return False
        self.requests.append(request)
        self.asked.set()
        pieces = self.answers.pop(0)
        if pieces is None:
            return False
        for piece in pieces:
            taken.sendall(piece)
        return True
