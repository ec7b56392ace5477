"""The runner's connection, against a server that does what a test says."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from runner import session as sessions
from runner.program import Program
from runner.protocol import Desired, Hello, LogTail, Offer, Report, encode
from runner.runtimes.simulated import Simulated
from runner.session import LONGEST_PAUSE, OUR_FAULT_PAUSE, Session, pause_seconds
from tests.unit.runner.listening import Server, last, reported
from tests.unit.runner.machine import Machine, state, wanted


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "pause_seconds", lambda _attempt, *, longest: 0.01 if longest else 0.0)
    monkeypatch.setattr(sessions, "LOG_SECONDS", 0.05)


@asynccontextmanager
async def talking(program: Program, server: Server, token: Callable[[], str] = lambda: "t") -> AsyncIterator[None]:
    url = f"http://127.0.0.1:{server.port}/"
    session = Session(url=url, node="n1", host="10.0.0.9", version="1", token=token, program=program)
    task = asyncio.create_task(session.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_is_said_and_done(machine: Machine) -> None:
    """SLOT-1c hello, an offer and a report before anything is wanted; then each change is reported at once."""
    server = Server()
    async with server.listening(), machine.program() as program, talking(program, server):
        await server.until(lambda: server.of(Report) and server.of(Offer))
        hello = server.said[0][0]
        assert isinstance(hello, Hello)
        assert (hello.node, hello.host, hello.instance) == ("n1", "10.0.0.9", program.state.instance)
        assert server.heads[0] == ("/ws/runners/n1/", "Bearer t")
        assert [frame.runtimes for frame in server.of(Offer) if isinstance(frame, Offer)] == [["simulated"]]
        await server.want(Desired([wanted()], ["s1"]))
        await server.until(lambda: any(one.state == "ready" for one in reported(server)))
        await server.until(lambda: any(isinstance(one, LogTail) and "ready" in one.text for one in server.of(LogTail)))
        await server.want(Desired([wanted(run=False)]))
        await server.until(lambda: reported(server)[-1].state == "stopped")
        assert machine.pids() == []
        await server.want(Desired())
        await server.until(lambda: not last(server).slots)


async def test_models_that_cannot_be_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-2 a disk that fails ends no session: slots are started and stopped, and what there is is said later."""
    broken = [OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle")]

    def sources(_runtime: Simulated) -> list[str]:
        if broken:
            raise broken.pop()
        return ["m"]

    monkeypatch.setattr(Simulated, "sources", sources)
    monkeypatch.setattr(sessions, "OFFER_SECONDS", 0.05)
    server = Server()
    async with server.listening(), machine.program() as program, talking(program, server):
        await server.until(lambda: server.of(Offer))
        assert len(server.said) == 1
        assert [frame.sources for frame in server.of(Offer) if isinstance(frame, Offer)] == [["m"]]


async def test_a_session_that_is_cut(machine: Machine) -> None:
    """SLOT-2 slots go on; the next session begins with all that runs, under the token of that moment."""
    server = Server()
    tokens = iter(f"t{number}" for number in range(100))
    async with server.listening(), machine.program() as program, talking(program, server, lambda: next(tokens)):
        await server.until(lambda: server.of(Report))
        await server.want(Desired([wanted()]))
        before = await state(program, "ready")
        server.sockets[-1].transport.abort()
        await server.until(lambda: len(server.said) > 1 and any(isinstance(one, Report) for one in server.said[-1]))
        first = next(one for one in server.said[-1] if isinstance(one, Report))
        assert [(one.id, one.state, one.pid) for one in first.slots] == [("s1", "ready", before.pid)]
        assert server.heads[1] == ("/ws/runners/n1/", "Bearer t1")
        assert first.boot == server.said[0][0].boot
        assert first.seq > server.said[0][-1].seq


async def test_a_server_that_is_away(machine: Machine) -> None:
    """SLOT-2 slots go on, and the runner connects once the server is back."""
    server = Server()
    async with machine.program() as program:
        async with server.listening(), talking(program, server):
            await server.until(lambda: server.of(Report))
            await server.want(Desired([wanted()]))
            await state(program, "ready")
        async with talking(program, server):
            await asyncio.sleep(0.1)
            assert machine.pids()
            async with server.listening():
                await server.until(lambda: len(server.said) > 1 and len(server.said[-1]) > 1)
        assert [one.state for one in program.reports()] == ["ready"]


@pytest.mark.parametrize("answer", [b"\xff", encode(Desired()), b"x" * (5 * 2**20)], ids=["no frame", "early", "long"])
async def test_a_server_that_errs(machine: Machine, answer: bytes) -> None:
    """A frame that is none, comes too early or is too long ends the session, and another one follows."""
    sessions_begun = asyncio.Semaphore(0)

    async def err(socket: ServerConnection) -> None:
        sessions_begun.release()
        async for _ in socket:
            await socket.send(answer)

    async with serve(err, "127.0.0.1", 0) as listener, machine.program() as program:
        server = Server()
        server.port = next(iter(listener.sockets)).getsockname()[1]
        async with asyncio.timeout(30), talking(program, server):
            for _ in range(3):
                await sessions_begun.acquire()


def test_pauses() -> None:
    """They double up to ten seconds; half a minute where the server blames the runner."""
    for attempt, want in ((1, 0.5), (2, 1.0), (5, 8.0), (9, LONGEST_PAUSE), (500, LONGEST_PAUSE)):
        assert all(want / 2 <= pause_seconds(attempt) <= want for _ in range(20))
    assert OUR_FAULT_PAUSE / 2 <= pause_seconds(1, longest=OUR_FAULT_PAUSE) <= OUR_FAULT_PAUSE
