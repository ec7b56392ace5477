"""Requests over kept-alive sockets: framing, reuse, and what goes wrong, told in urllib3's exceptions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import urllib3
from urllib3.exceptions import LocationValueError, ProtocolError, ReadTimeoutError

from kube.direct import Answer, Direct
from tests.fakes.script import OK, WHOLE_ANSWERS, Script


@contextmanager
def served(script: Script) -> Iterator[Direct]:
    """A client of the script."""
    with script.serving() as pool, closing(Direct(pool, size=2)) as client:
        yield client


def ask(
    client: Direct, method: str = "GET", target: str = "/x", body: bytes | None = None, wait: float = 5.0
) -> Answer:
    return client.send(method, target, headers={"Accept": "a/b"}, body=body, connect=5.0, wait=wait)


@pytest.mark.parametrize(("pieces", "status", "data"), WHOLE_ANSWERS)
def test_an_answer_is_read_to_its_end(pieces: list[bytes], status: int, data: bytes) -> None:
    with served(Script(pieces, [OK])) as client:
        answer = ask(client)
        assert (answer.status, answer.data) == (status, data)
        assert ask(client).data == b"ok"


def test_one_connection_serves_request_after_request() -> None:
    script = Script([OK], [OK], [OK])
    with served(script) as client:
        assert [ask(client, "POST", body=b"{}").status for _ in range(3)] == [200, 200, 200]
        assert script.connections == 1
        head = script.requests[0].split(b"\r\n")
    assert head[0] == b"POST /x HTTP/1.1"
    assert {b"Host: 127.0.0.1:%d" % script.port, b"Accept: a/b", b"Content-Length: 2"} <= set(head)


def test_headers_are_found_whatever_their_case() -> None:
    with served(Script([OK])) as client:
        assert ask(client).headers.get("retry-after") == "7"


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    script = Script([OK], [OK], hang_up_after=1)
    with served(script) as client:
        ask(client)
        assert script.hung_up.wait(10)
        assert ask(client).data == b"ok"
    assert script.connections >= 2


def test_an_answer_that_ends_the_connection_ends_it() -> None:
    script = Script([OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], [OK])
    with served(script) as client:
        assert [ask(client).data for _ in range(2)] == [b"ok", b"ok"]
    assert script.connections >= 2


def test_a_lost_answer_is_told() -> None:
    with served(Script(None)) as client, pytest.raises(ProtocolError):
        ask(client)


def test_half_an_answer_is_told() -> None:
    with served(Script([OK[:-1]], hang_up_after=1)) as client, pytest.raises(ProtocolError):
        ask(client)


def test_what_is_no_http_is_told() -> None:
    with served(Script([b"SSH-2.0-OpenSSH\r\n\r\n"])) as client, pytest.raises(ProtocolError):
        ask(client)


def test_an_answer_in_a_coding_that_nobody_asked_for_is_told() -> None:
    coded = OK.replace(b"Retry-After: 7", b"Content-Encoding: gzip")
    with served(Script([coded], [OK])) as client:
        with pytest.raises(ProtocolError, match="coded in gzip, which was not asked for"):
            ask(client)
        assert ask(client).data == b"ok"


def test_silence_is_told() -> None:
    with served(Script([], [OK])) as client, pytest.raises(ReadTimeoutError):
        ask(client, wait=0.05)


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX: y", "/a\n"])
def test_a_target_that_would_end_its_line_is_not_sent(target: str) -> None:
    script = Script([OK])
    with served(script) as client, pytest.raises(LocationValueError):
        ask(client, target=target)
    assert script.requests == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Direct(urllib3.HTTPConnectionPool("127.0.0.1", port), size=2)
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        ask(client)
