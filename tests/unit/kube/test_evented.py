"""Requests of an event loop: framing, reuse, turns and deadlines, and what goes wrong, told in urllib3's exceptions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import urllib3
from urllib3.exceptions import LocationValueError, ProtocolError, ReadTimeoutError

from kube.direct import Answer
from kube.evented import Evented, TooLate
from tests.fakes.script import OK, WHOLE_ANSWERS, Script

Ask = Callable[..., Awaitable[Answer]]


def run(script: Script, story: Callable[[Evented, Ask], Awaitable[Any]], *, size: int = 2) -> Any:
    """The story told against the script, on a loop of its own."""

    async def told() -> Any:
        with script.serving() as pool:
            evented = Evented(pool, size=size)

            async def ask(
                method: str = "POST",
                target: str = "/x",
                body: bytes | None = b"{}",
                wait: float = 5.0,
                before: float = float("inf"),
            ) -> Answer:
                return await evented.send(
                    method, target, headers={"Accept": "a/b"}, body=body, connect=5.0, wait=wait, before=before
                )

            try:
                return await story(evented, ask)
            finally:
                evented.close()

    return asyncio.run(told())


@pytest.mark.parametrize(("pieces", "status", "data"), WHOLE_ANSWERS)
def test_an_answer_is_read_to_its_end(pieces: list[bytes], status: int, data: bytes) -> None:
    async def story(_: Evented, ask: Ask) -> None:
        answer = await ask()
        assert (answer.status, answer.data) == (status, data)
        assert (await ask()).data == b"ok"

    run(Script(pieces, [OK]), story)


def test_one_connection_serves_request_after_request() -> None:
    script = Script([OK], [OK], [OK])

    async def story(_: Evented, ask: Ask) -> None:
        assert [(await ask()).status for _ in range(3)] == [200, 200, 200]
        assert script.connections == 1

    run(script, story)
    assert script.requests[0].split(b"\r\n")[0] == b"POST /x HTTP/1.1"
    assert script.requests[0].endswith(b"\r\n\r\n{}")


def test_a_body_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    large = b"x" * (8 << 20)

    async def story(_: Evented, ask: Ask) -> int:
        return (await ask(body=large, wait=20.0)).status

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
            evented = Evented(urllib3.HTTPConnectionPool("127.0.0.1", listener.getsockname()[1]), size=1)
            answer = await evented.send("POST", "/x", headers={}, body=large, connect=5, wait=20, before=float("inf"))
            arrived = await served
            evented.close()
            return answer.status, arrived

        assert asyncio.run(both()) == (200, len(large))


def test_an_idle_connection_that_the_server_closes_is_not_used_again() -> None:
    script = Script([OK], [OK], hang_up_after=1)

    async def story(evented: Evented, ask: Ask) -> bytes:
        await ask()
        assert await asyncio.to_thread(script.hung_up.wait, 10)
        for _ in range(100):
            await asyncio.sleep(0)  # the loop reads the end of the connection
        assert evented._idle == []
        return (await ask()).data

    assert run(script, story) == b"ok"
    assert script.connections >= 2


def test_an_answer_that_ends_the_connection_ends_it() -> None:
    async def story(evented: Evented, ask: Ask) -> bytes:
        await ask()
        assert evented._idle == []
        return (await ask()).data

    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert run(Script([closing], [OK]), story) == b"ok"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(lambda: Script(None), ProtocolError, id="no answer"),
        pytest.param(lambda: Script([OK[:-1]], hang_up_after=1), ProtocolError, id="half an answer"),
        pytest.param(lambda: Script([b"SSH-2.0-OpenSSH\r\n\r\n"]), ProtocolError, id="no HTTP"),
        pytest.param(
            lambda: Script([OK.replace(b"Retry-After: 7", b"Content-Encoding: gzip")]), ProtocolError, id="coded"
        ),
        pytest.param(lambda: Script([], [OK]), ReadTimeoutError, id="silence"),
    ],
)
def test_what_goes_wrong_is_told(script: Callable[[], Script], error: type[Exception]) -> None:
    async def story(_: Evented, ask: Ask) -> None:
        with pytest.raises(error):
            await ask(wait=0.05 if error is ReadTimeoutError else 5.0)

    run(script(), story)


def test_who_is_out_of_patience_leaves_no_answer_behind_for_the_next() -> None:
    script = Script([], [OK])

    async def story(evented: Evented, ask: Ask) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask()
        assert evented._idle == []

    run(script, story)


def test_nothing_is_sent_after_its_time() -> None:
    """LEASE-3 collection may act on a reservation, since its bind sends nothing any more."""
    script = Script([OK], [OK])

    async def story(_: Evented, ask: Ask) -> bytes:
        with pytest.raises(TooLate):
            await ask(before=asyncio.get_running_loop().time() - 1)
        return (await ask()).data

    assert run(script, story) == b"ok"
    assert len([request for request in script.requests if request.startswith(b"POST")]) == 1


def test_no_more_than_its_size_are_under_way() -> None:
    script = Script(*[[OK]] * 6)

    async def story(_: Evented, ask: Ask) -> list[bytes]:
        answers = await asyncio.gather(*(ask() for _ in range(6)))
        assert script.connections == 1
        return [answer.data for answer in answers]

    assert run(script, story, size=1) == [b"ok"] * 6


def test_a_target_that_would_end_its_line_is_not_sent() -> None:
    script = Script([OK])

    async def story(_: Evented, ask: Ask) -> None:
        with pytest.raises(LocationValueError):
            await ask(target="/a\r\nX: y")

    run(script, story)
    assert script.requests == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def story() -> None:
        evented = Evented(urllib3.HTTPConnectionPool("127.0.0.1", port), size=2)
        with pytest.raises(urllib3.exceptions.NewConnectionError):
            await evented.send("GET", "/x", headers={}, body=None, connect=5, wait=5, before=float("inf"))

    asyncio.run(story())
