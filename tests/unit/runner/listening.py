"""A server of runners that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from websockets.asyncio.server import ServerConnection, serve

from runner.protocol import Desired, Hello, Report, RunnerFrame, SlotReport, Welcome, decode, encode


class Server:
    """Keeps what was said, by session. `code`: how each session ends that has begun; 0: it goes on."""

    def __init__(self) -> None:
        self.said: list[list[RunnerFrame]] = []
        self.heads: list[tuple[str, str]] = []
        self.sockets: list[ServerConnection] = []
        self.wants = Desired()
        self.code = 0
        self.news = asyncio.Condition()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Server]:
        async with serve(self._serve, "127.0.0.1", self.port) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            yield self

    async def want(self, desired: Desired) -> None:
        """Tell the session that is open, and those to come."""
        self.wants = desired
        await self.sockets[-1].send(encode(desired))

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(30), self.news:
            await self.news.wait_for(lambda: bool(true()))

    def of(self, kind: type[RunnerFrame]) -> list[RunnerFrame]:
        return [frame for said in self.said for frame in said if isinstance(frame, kind)]

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.heads.append((socket.request.path, socket.request.headers["Authorization"]))
        said: list[RunnerFrame] = []
        self.said.append(said)
        self.sockets.append(socket)
        async for message in socket:
            assert isinstance(message, bytes)
            frame = decode(message)
            said.append(frame)
            if isinstance(frame, Hello):
                await socket.send(encode(Welcome(frame.boot, 1.0)))
            elif len(said) == 2:
                await socket.send(encode(self.wants))
            async with self.news:
                self.news.notify_all()
            if self.code:
                await socket.close(self.code)


def last(server: Server) -> Report:
    """The report that came last."""
    found = server.of(Report)[-1]
    assert isinstance(found, Report)
    return found


def reported(server: Server) -> list[SlotReport]:
    """Every slot of every report, the oldest first."""
    return [one for frame in server.of(Report) if isinstance(frame, Report) for one in frame.slots]
