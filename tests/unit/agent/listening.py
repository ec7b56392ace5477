"""A server that does what a test says, and an agent's session that speaks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from agent.outbox import Outbox
from agent.protocol import Ack, AgentFrame, Details, Sample, decode, encode
from agent.session import Session

BODY: dict[str, Any] = {
    "name": "n1",
    "devices": [{"uuid": "GPU-1", "minor": 0}, {"uuid": "GPU-2", "minor": 1}],
    "links": [],
}
TURNED: dict[str, Any] = {
    **BODY,
    "devices": [{"uuid": "GPU-2", "minor": 0}, {"uuid": "GPU-1", "minor": 1}],
}


class Server:
    """Remembers what was said, by session. `answer`: the ack of a frame, None to close with `code`."""

    def __init__(self) -> None:
        self.sessions: list[list[AgentFrame]] = []
        self.tokens: list[str] = []
        self.paths: list[str] = []
        self.answer: Callable[[AgentFrame], Ack | None] = lambda frame: Ack(frame.boot, frame.seq, 0.0)
        self.code = 1011
        self.news = asyncio.Condition()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Server]:
        async with serve(self._serve, "127.0.0.1", self.port) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            yield self

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.tokens.append(socket.request.headers["Authorization"])
        self.paths.append(socket.request.path)
        said: list[AgentFrame] = []
        self.sessions.append(said)
        async for message in socket:
            assert isinstance(message, bytes)
            frame = decode(message)
            said.append(frame)
            async with self.news:
                self.news.notify_all()
            ack = self.answer(frame)
            if ack is None:
                await socket.close(self.code)
                return
            if not isinstance(frame, Sample | Details) or ack.problem or ack.want:
                await socket.send(encode(ack))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.news:
            await self.news.wait_for(true)

    @property
    def said(self) -> list[AgentFrame]:
        """Everything, over all sessions."""
        return [frame for one in self.sessions for frame in one]


def run(test: Callable[[Server, Outbox, Session], Awaitable[None]]) -> None:
    """A server, an outbox, a session that runs; then the test."""

    async def all_of_it() -> None:
        server, outbox = Server(), Outbox()
        async with server.listening():
            tokens = iter(f"token-{number}" for number in range(1000))
            session = Session(
                url=f"http://127.0.0.1:{server.port}",
                node="n1",
                version="1",
                token=lambda: next(tokens),
                outbox=outbox,
            )
            running = asyncio.create_task(session.run())
            try:
                await test(server, outbox, session)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(all_of_it())


def kinds(said: list[AgentFrame]) -> list[str]:
    return [type(frame).__name__ for frame in said]
