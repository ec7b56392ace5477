"""Make-believe agents against a WebSocket server that reads their frames with the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from agent import session as sessions
from agent.protocol import Ack, AgentFrame, Health, Hello, Inventory, Sample, decode, encode
from nodes.inventory import parse_node
from simulator import agents as module
from simulator.agents import Agent, Crowd
from simulator.fleet import make_fleet
from simulator.signals import Signals

NODE = make_fleet(1)[0]


class Hearing:
    """Writes down what comes; `acks` says which frames are answered, `after` when a session is cut."""

    def __init__(self) -> None:
        self.frames: list[AgentFrame] = []
        self.sessions = 0
        self.heads: list[tuple[str, str]] = []
        self.acks: Callable[[AgentFrame], bool] = lambda _: True
        self.cut_at: Callable[[AgentFrame], bool] = lambda _: False
        self.news = asyncio.Condition()

    async def session(self, socket: ServerConnection) -> None:
        self.sessions += 1
        assert socket.request is not None
        self.heads.append((socket.request.path, socket.request.headers["Authorization"]))
        async for body in socket:
            assert isinstance(body, bytes)
            frame = decode(body)
            async with self.news:
                self.frames.append(frame)
                self.news.notify_all()
            if self.cut_at(frame):
                return
            if not isinstance(frame, Sample) and self.acks(frame):
                await socket.send(encode(Ack(frame.boot, frame.seq, 0.0)))

    async def until(self, enough: Callable[[], bool]) -> None:
        async with self.news:
            await self.news.wait_for(enough)

    def count(self, kind: type) -> int:
        return sum(isinstance(frame, kind) for frame in self.frames)


@pytest.fixture
def hearing() -> Hearing:
    return Hearing()


@pytest.fixture
async def server(hearing: Hearing) -> AsyncIterator[Server]:
    async with serve(hearing.session, "127.0.0.1", 0, compression=None) as running:
        yield running


@pytest.fixture
async def agent(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """A running agent that does not pause between sessions, nor between samples."""
    monkeypatch.setattr(sessions, "pause_seconds", lambda _attempt, *, longest: 0.0 * longest)
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.01)
    port = next(iter(server.sockets)).getsockname()[1]
    made = Agent(
        NODE,
        0,
        signals=Signals((NODE,), seed=1),
        crowd=Crowd(1),
        url=f"http://127.0.0.1:{port}",
        token="cluster-token",
        phase=0.0,
    )
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("agent")
async def test_session_opens_with_hello_then_inventory_then_samples(hearing: Hearing) -> None:
    """NODE-2 an agent introduces itself, says what it has, and streams."""
    await hearing.until(lambda: hearing.count(Sample) >= 3)
    assert hearing.heads[0] == (f"/ws/agents/{NODE.name}/", "Bearer cluster-token")
    hello, inventory = hearing.frames[:2]
    assert isinstance(hello, Hello)
    assert tuple(hello.devices) == NODE.uuids
    assert isinstance(inventory, Inventory)
    assert inventory.node == NODE.inventory()
    assert len({frame.boot for frame in hearing.frames}) == 1
    numbers = [frame.seq for frame in hearing.frames]
    assert numbers == sorted(set(numbers))


@pytest.mark.usefixtures("agent")
async def test_session_is_opened_again_after_a_cut(hearing: Hearing) -> None:
    """NODE-2 an agent comes back after every disconnect, under growing numbers."""
    hearing.cut_at = lambda frame: isinstance(frame, Sample) and hearing.sessions < 3
    await hearing.until(lambda: hearing.sessions == 3 and hearing.count(Sample) > 5)
    assert hearing.count(Hello) == 3
    assert hearing.count(Inventory) == 1
    numbers = [frame.seq for frame in hearing.frames]
    assert numbers == sorted(set(numbers))


async def test_health_that_was_not_acknowledged_is_said_again(hearing: Hearing, agent: Agent) -> None:
    """NODE-2 no change of state is lost: what has no ack is said again in the next session."""
    hearing.cut_at = lambda frame: isinstance(frame, Health) and hearing.count(Health) < 3
    agent.report_health(NODE.uuids[0], "Xid 79")
    await hearing.until(lambda: hearing.count(Health) == 3)
    before = hearing.count(Sample)
    await hearing.until(lambda: hearing.count(Sample) > before + 3)
    said = [frame.health for frame in hearing.frames if isinstance(frame, Health)]
    assert said == [{NODE.uuids[0]: "Xid 79"}] * 3


@pytest.mark.usefixtures("agent")
async def test_inventory_without_ack_is_sent_again(hearing: Hearing) -> None:
    hearing.cut_at = lambda frame: isinstance(frame, Inventory) and hearing.count(Inventory) < 2
    await hearing.until(lambda: hearing.count(Sample) >= 1)
    assert (hearing.count(Inventory), hearing.sessions) == (2, 2)


async def test_sick_device_is_in_a_later_inventory(hearing: Hearing, agent: Agent) -> None:
    hearing.cut_at = lambda frame: isinstance(frame, Inventory) and hearing.count(Inventory) < 2
    agent.report_health(NODE.uuids[1], "Xid 94")
    await hearing.until(lambda: hearing.count(Inventory) == 2)
    inventory = [frame for frame in hearing.frames if isinstance(frame, Inventory)][-1]
    assert [device.uuid for device in parse_node(inventory.node).devices if not device.healthy] == [NODE.uuids[1]]
