"""Requests to a scripted server, by coroutines and by threads: framing, reuse, turns, deadlines, errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

from kube import transport
from kube.errors import Invalid, OutcomeUnknown, Unreachable
from kube.http1 import HttpConnection
from tests.fakes.script import OK, WHOLE_ANSWERS, Script
from tests.unit.kube.transports import CLOSING, Ask, asking, made


@pytest.fixture(params=[False, True], ids=["by a coroutine", "by a thread"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Tells a story against a script."""

    def told(script: Script, story: Callable[[Ask], Awaitable[Any]], *, connections: int = 2) -> Any:
        async def whole() -> Any:
            with script.serving() as address:
                carried = made(address, connections=connections)
                try:
                    return await story(asking(carried, thread=request.param))
                finally:
                    carried.close()
                    await asyncio.sleep(0)

        return asyncio.run(whole())

    return told


@pytest.mark.parametrize(("pieces", "status", "data"), WHOLE_ANSWERS)
def test_an_answer_is_read_to_its_end(run: Callable[..., Any], pieces: list[bytes], status: int, data: bytes) -> None:
    async def story(ask: Ask) -> None:
        answer = await ask()
        assert (answer.status, answer.data) == (status, data)
        assert (await ask()).data == b"ok"

    run(Script(pieces, [OK]), story)


def test_one_connection_serves_request_after_request(run: Callable[..., Any]) -> None:
    script = Script([OK], [OK], [OK])

    async def story(ask: Ask) -> None:
        assert [(await ask()).status for _ in range(3)] == [200, 200, 200]
        assert script.connections == 1

    run(script, story)
    head, _, body = script.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /x HTTP/1.1"
    wanted = {b"Host: 127.0.0.1:%d" % script.port, b"Accept: application/json", b"Content-Length: 2"}
    assert wanted <= set(lines)
    assert body == b"{}"


def test_headers_are_found_whatever_their_case(run: Callable[..., Any]) -> None:
    async def story(ask: Ask) -> None:
        assert (await ask()).headers.get("retry-after") == "7"

    run(Script([OK]), story)


def test_a_connection_that_the_server_closed_is_not_used_again(run: Callable[..., Any]) -> None:
    script = Script([OK], [OK], hang_up_after=1)

    async def story(ask: Ask) -> bytes:
        await ask()
        assert await asyncio.to_thread(script.hung_up.wait, 10)
        for _ in range(100):
            await asyncio.sleep(0)  # the loop reads the end of the connection
        return (await ask("GET", body=None)).data

    assert run(script, story) == b"ok"
    assert script.connections >= 2


def test_an_answer_that_ends_the_connection_ends_it(run: Callable[..., Any]) -> None:
    script = Script([CLOSING], [OK])

    async def story(ask: Ask) -> list[bytes]:
        return [(await ask()).data for _ in range(2)]

    assert run(script, story) == [b"ok", b"ok"]
    assert script.connections >= 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-3 the server may close it just as the request arrives, whose outcome nobody knows then."""
    monkeypatch.setattr(transport, "IDLE_SECONDS", 0.0)
    script = Script([OK], [OK])

    async def story(ask: Ask) -> list[bytes]:
        return [(await ask()).data for _ in range(2)]

    assert run(script, story) == [b"ok", b"ok"]
    assert script.connections >= 2


@pytest.mark.parametrize(
    ("method", "error"),
    [pytest.param("POST", OutcomeUnknown, id="a write"), pytest.param("GET", Unreachable, id="a read")],
)
@pytest.mark.parametrize(
    ("script", "text", "seconds"),
    [
        pytest.param(lambda: Script(None), "closed the connection without an answer", 5.0, id="no answer"),
        pytest.param(lambda: Script([OK[:-1]], hang_up_after=1), "without an answer", 5.0, id="half an answer"),
        pytest.param(lambda: Script([b"SSH-2.0-OpenSSH\r\n\r\n"]), "Expected HTTP", 5.0, id="no HTTP"),
        pytest.param(
            lambda: Script([OK.replace(b"Retry-After: 7", b"Content-Encoding: gzip")]),
            "coded in gzip, which was not asked for",
            5.0,
            id="coded",
        ),
        pytest.param(lambda: Script([], [OK]), "no answer within 0.05 s", 0.05, id="silence"),
    ],
)
def test_a_lost_answer_is_reported(
    run: Callable[..., Any],
    script: Callable[[], Script],
    text: str,
    seconds: float,
    method: str,
    error: type[Exception],
) -> None:
    """LEASE-3 of a write whose answer is lost nobody knows whether it was applied."""

    async def story(ask: Ask) -> None:
        with pytest.raises(error, match=text):
            await ask(method, seconds=seconds)

    run(script(), story)


def test_a_body_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    large = b"x" * (8 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> int:
            taken, _ = listener.accept()
            with taken:
                got = b""
                head = 0
                while not head or len(got) < head + len(large):
                    got += taken.recv(1 << 20)
                    head = head or got.find(b"\r\n\r\n") + 4
                taken.sendall(OK)
                return len(got) - head

        async def both() -> tuple[int, int]:
            served = asyncio.get_running_loop().run_in_executor(None, serve)
            carried = made(f"http://127.0.0.1:{listener.getsockname()[1]}")
            answer = await asking(carried, thread=False)(body=large, seconds=20)
            carried.close()
            return answer.status, await served

        assert asyncio.run(both()) == (200, len(large))


def test_who_is_out_of_patience_leaves_no_answer_behind_for_the_next() -> None:
    async def story() -> bytes:
        script = Script([], [OK])
        with script.serving() as address, closing(made(address)) as carried:
            ask = asking(carried, thread=False)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await ask()
            return (await ask()).data

    assert asyncio.run(story()) == b"ok"


def test_who_leaves_as_the_answer_comes_leaves_no_connection_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is whole, and nobody takes it any more: its connection is closed."""
    script = Script([OK], [OK])
    received = HttpConnection.data_received

    async def story() -> None:
        with script.serving() as address, closing(made(address)) as carried:
            asked = asyncio.ensure_future(asking(carried, thread=False)())

            def arrived(connection: HttpConnection, data: bytes) -> None:
                received(connection, data)
                asked.cancel()

            monkeypatch.setattr(HttpConnection, "data_received", arrived)
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert await asyncio.to_thread(script.hung_up.wait, 5)

    asyncio.run(story())


def test_nothing_is_sent_after_its_time() -> None:
    """LEASE-3 collection may act on a reservation, since its bind sends nothing any more."""
    script = Script([OK], [OK])

    async def story() -> bytes:
        with script.serving() as address, closing(made(address)) as carried:
            ask = asking(carried, thread=False)
            with pytest.raises(Unreachable, match="not sent: its time was over"):
                await ask(before=asyncio.get_running_loop().time() - 1)
            return (await ask()).data

    assert asyncio.run(story()) == b"ok"
    assert len([request for request in script.requests if request.startswith(b"POST")]) == 1


def test_no_more_than_its_connections_are_under_way(run: Callable[..., Any]) -> None:
    script = Script(*[[OK]] * 6)

    async def story(ask: Ask) -> list[bytes]:
        answers = await asyncio.gather(*(ask() for _ in range(6)))
        assert script.connections == 1
        return [answer.data for answer in answers]

    assert run(script, story, connections=1) == [b"ok"] * 6


def test_a_turn_is_waited_for_as_long_as_a_request_may_take(run: Callable[..., Any]) -> None:
    """SCALE-7 a server that does not answer keeps nobody waiting without end: what was not sent is told so."""

    async def story(ask: Ask) -> list[type[object]]:
        outcomes = await asyncio.gather(ask(seconds=0.3), ask(seconds=0.05), return_exceptions=True)
        return [type(outcome) for outcome in outcomes]

    assert set(run(Script([], [OK]), story, connections=1)) == {OutcomeUnknown, Unreachable}


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX: y", "/a\n"])
def test_a_target_that_would_end_its_line_is_not_sent(run: Callable[..., Any], target: str) -> None:
    script = Script([OK])

    async def story(ask: Ask) -> None:
        with pytest.raises(Invalid):
            await ask(target=target)

    run(script, story)
    assert script.requests == []


@pytest.mark.parametrize("thread", [False, True], ids=["by a coroutine", "by a thread"])
def test_nobody_listens(thread: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def story() -> None:
        with pytest.raises(Unreachable):
            await asking(made(f"http://127.0.0.1:{port}"), thread=thread)()

    asyncio.run(story())
