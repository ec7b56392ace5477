"""The agent's connection, against a server that does what a test says."""

from __future__ import annotations

import pytest

from agent import session as sessions
from agent.outbox import Outbox
from agent.protocol import Ack, AgentFrame, Checkpoint, Details, DeviceDetails, Health, Hello, Inventory, Sample
from agent.session import (
    FIRST_AGAIN,
    FIRST_PAUSE,
    LONGEST_AGAIN,
    LONGEST_PAUSE,
    OUR_FAULT_PAUSE,
    Session,
    again_seconds,
    pause_seconds,
)
from tests.unit.agent.listening import BODY, Server, kinds, run


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "pause_seconds", lambda _attempt, *, longest: 0.01 if longest else 0.0)
    monkeypatch.setattr(sessions, "again_seconds", lambda _attempt: 0.01)


def test_a_session_begins_with_hello_and_says_what_is_due() -> None:
    """NODE-2 hello, then changes of state in their order, then samples; every frame has a higher number."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        outbox.put_health({"GPU-1": "Xid 79"})
        outbox.put_inventory(BODY)
        outbox.put_sample({"power_watts": [1, 2]}, at=123.5)
        await server.until(lambda: len(server.said) >= 4)
        assert kinds(server.said) == ["Hello", "Inventory", "Health", "Sample"]
        hello, inventory, health, sample = server.said
        assert isinstance(hello, Hello)
        assert (hello.node, hello.devices) == ("n1", ["GPU-1", "GPU-2"])
        assert isinstance(inventory, Inventory)
        assert isinstance(health, Health)
        assert isinstance(sample, Sample)
        assert [one.get("healthy", True) for one in inventory.node["devices"]] == [False, True]
        assert (health.health, sample.power_watts) == ({"GPU-1": "Xid 79"}, [1, 2])
        assert sample.time == 123.5, "of the measurement"
        assert len({frame.boot for frame in server.said}) == 1
        assert [frame.seq for frame in server.said] == sorted({frame.seq for frame in server.said})
        assert server.paths == ["/ws/agents/n1/"]
        outbox.put_checkpoint([])
        await server.until(lambda: isinstance(server.said[-1], Checkpoint))

    run(test)


def test_what_was_not_acknowledged_is_said_again() -> None:
    """NODE-2 a connection lost between a change and its ack loses nothing; the token is read anew."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        refused: list[AgentFrame] = []

        def once(frame: AgentFrame) -> Ack | None:
            if isinstance(frame, Health) and not refused:
                refused.append(frame)
                return None
            return Ack(frame.boot, frame.seq, 0.0)

        server.answer = once
        outbox.put_health({"GPU-2": "Xid 48"})
        await server.until(lambda: kinds(server.said).count("Health") == 2)
        first, second = (frame for frame in server.said if isinstance(frame, Health))
        assert first.health == second.health == {"GPU-2": "Xid 48"}
        assert second.seq > first.seq
        assert len(server.sessions) == 2
        assert server.tokens == ["Bearer token-0", "Bearer token-1"]

    run(test)


def test_details_are_said_in_every_session() -> None:
    """NODE-2 once each, in their newest form; nobody acknowledges them."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        outbox.put_details([DeviceDetails(ecc_corrected=1), DeviceDetails()])
        outbox.put_sample({"power_watts": [1, 2]}, at=123.5)
        await server.until(lambda: kinds(server.said).count("Sample") == 1)
        assert kinds(server.said) == ["Hello", "Details", "Sample"]
        server.answer = lambda _: None
        outbox.put_sample({"power_watts": [1, 2]}, at=123.5)
        await server.until(lambda: kinds(server.said).count("Sample") == 2)
        server.answer = lambda frame: Ack(frame.boot, frame.seq, 0.0)
        await server.until(lambda: kinds(server.sessions[-1]) == ["Hello", "Details"])
        said = server.sessions[-1][1]
        assert isinstance(said, Details)
        assert said.details == [DeviceDetails(ecc_corrected=1), DeviceDetails()]

    run(test)


def test_the_server_asks_for_the_inventory() -> None:
    """NODE-2 in the ack of hello, or of a sample that it could not use."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        outbox.put_inventory(BODY)
        await server.until(lambda: kinds(server.said) == ["Hello", "Inventory"])
        server.answer = lambda frame: Ack(
            frame.boot, frame.seq, 0.0, "unknown order" if isinstance(frame, Sample) else "",
            "inventory" if isinstance(frame, Sample) else "",
        )  # fmt: skip
        outbox.put_sample({"power_watts": [1, 2]}, at=123.5)
        await server.until(lambda: kinds(server.said)[-2:] == ["Sample", "Inventory"])

    run(test)


def test_what_the_server_will_not_take_is_not_said_for_ever() -> None:
    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        server.answer = lambda frame: Ack(
            frame.boot, frame.seq, 0.0, "no such device" if isinstance(frame, Health) else ""
        )
        outbox.put_health({"GPU-9": "Xid 48"})
        outbox.put_sample({"power_watts": [1, 2]}, at=123.5)
        await server.until(lambda: kinds(server.said) == ["Hello", "Health", "Sample"])

    run(test)


def test_a_server_that_is_away_comes_back() -> None:
    """NODE-2 reconnect; what changed meanwhile is said."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        await server.until(lambda: kinds(server.said) == ["Hello"])
        server.answer = lambda frame: None if isinstance(frame, Sample) else Ack(frame.boot, frame.seq, 0.0)
        outbox.put_sample({"power_watts": [1, 2]}, at=123.5)
        await server.until(lambda: len(server.sessions) >= 2)
        outbox.put_health({"GPU-1": "Xid 79"})
        await server.until(lambda: "Health" in kinds(server.sessions[-1]))

    run(test)


def test_pauses() -> None:
    """NODE-2 doubling, bounded, with jitter; long where the server says that the agent is at fault."""
    for attempt in range(1, 40):
        bound = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE)
        found = [pause_seconds(attempt) for _ in range(50)]
        assert all(bound / 2 <= pause <= bound for pause in found)
        assert len(set(found)) > 1
    assert OUR_FAULT_PAUSE / 2 <= pause_seconds(1, longest=OUR_FAULT_PAUSE) <= OUR_FAULT_PAUSE
    for attempt in range(1, 40):
        bound = min(FIRST_AGAIN * 2 ** (attempt - 1), LONGEST_AGAIN)
        assert bound / 2 <= again_seconds(attempt) <= bound
