"""Answers as servers send them, whole and broken, byte for byte over TLS."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_server

import pytest

from agent.reserve.http1 import Answer, BadAnswer, exchange
from tests.certificates import Authority

Ask = Callable[..., Answer]


class Server:
    """Answers one connection with these bytes; `hold`: it stays open afterwards until the test ends."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        pair = authority.issue("server")
        self.ca = authority.certificate
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._listening = create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.request = b""
        self.done = threading.Event()
        self._thread: threading.Thread | None = None

    def answer(self, data: bytes, *, hold: bool = False) -> None:
        self._thread = threading.Thread(target=self._serve, args=(data, hold))
        self._thread.start()

    def _serve(self, data: bytes, hold: bool) -> None:
        plain, _ = self._listening.accept()
        # a client may have read enough
        with suppress(OSError), plain, self._context.wrap_socket(plain, server_side=True) as secure:
            self.request = secure.recv(65536)
            secure.sendall(data)
            if hold:
                self.done.wait(30)

    def close(self) -> None:
        self.done.set()
        if self._thread:
            self._thread.join(30)
        self._listening.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ask(server: Server) -> Ask:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(server.ca)

    def run(seconds: float = 20, body: bytes = b"") -> Answer:
        headers = {"Authorization": "Bearer t"}
        return exchange(
            host="127.0.0.1",
            port=server.port,
            context=context,
            method="PATCH",
            path="/a",
            headers=headers,
            body=body,
            seconds=seconds,
        )

    return run


def test_the_request(server: Server, ask: Ask) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    ask(body=b'{"a": 1}')
    head, _, body = server.request.partition(b"\r\n\r\n")
    assert head.decode().split("\r\n") == [
        "PATCH /a HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Connection: close",
        "Content-Length: 8",
        "Authorization: Bearer t",
    ]
    assert body == b'{"a": 1}'


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}"), id="by length"),
        pytest.param(b"HTTP/1.1 503 \r\n\r\nsorry", (503, b"sorry"), id="until the end"),
        pytest.param(b"HTTP/1.0 200 OK\r\nX: 1\r\nx: 2\r\n\r\n{}", (200, b"{}"), id="HTTP/1.0"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", (200, b"{}"), id="one chunk"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"
            b"1;a=b\r\n{\r\n00a\r\n0123456789\r\n1\r\n}\r\n0\r\n\r\n",
            (200, b"{0123456789}"),
            id="chunks",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (200, b""), id="no chunk"),
    ],
)
def test_whole_answers(sent: bytes, want: tuple[int, bytes], server: Server, ask: Ask) -> None:
    server.answer(sent)
    found = ask()
    assert (found.status, found.body) == want


@pytest.mark.parametrize(
    ("sent", "want_why"),
    [
        pytest.param(b"", "no HTTP", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", "no HTTP", id="half a head"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", "no HTTP", id="another protocol"),
        pytest.param(b"HTTP/1.1 2x0 OK\r\n\r\n", "no HTTP", id="no status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", "ended early", id="shorter than it says"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "ended early", id="no last chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}", "ended early", id="half a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{}", "ended early", id="no size"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n{}", "ended early", id="a size below 0"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (4 * 2**20), "more than", id="too long"),
    ],
)
def test_broken_answers(sent: bytes, want_why: str, server: Server, ask: Ask) -> None:
    server.answer(sent)
    with pytest.raises(BadAnswer, match=want_why):
        ask()


def test_an_answer_that_never_ends(server: Server, ask: Ask) -> None:
    """The whole exchange has a deadline, not each piece of it."""
    server.answer(b"HTTP/1.1 200 OK\r\n", hold=True)
    with pytest.raises(TimeoutError):
        ask(seconds=0.3)
