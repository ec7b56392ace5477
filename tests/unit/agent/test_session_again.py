"""What an agent's session says again, and what it does not, when the server does not take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from agent import session as sessions
from agent.outbox import Outbox
from agent.protocol import Ack, AgentFrame, Checkpoint, Details, DeviceDetails, Health, Hello, Inventory, Sample
from agent.session import Session
from tests.unit.agent.listening import BODY, TURNED, Server, kinds, run


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "pause_seconds", lambda _attempt, *, longest: 0.01 if longest else 0.0)
    monkeypatch.setattr(sessions, "again_seconds", lambda _attempt: 0.01)


def said_so_far(server: Server, want: list[str]) -> bool:
    return kinds(server.said) == want


def refusing(kind: type, problem: str, *, again: bool = False, want: str = "") -> Callable[[AgentFrame], Ack]:
    def answer(frame: AgentFrame) -> Ack:
        if isinstance(frame, kind):
            return Ack(frame.boot, frame.seq, 0.0, problem, want, again)
        return Ack(frame.boot, frame.seq, 0.0)

    return answer


def test_what_cannot_be_stored_now_is_said_again() -> None:
    """NODE-2 while the database is away no change of state is lost, samples go on, and the server is given time."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        server.answer = refusing(Health, "the database is away", again=True)
        outbox.put_health({"GPU-1": "fallen off the bus"})
        await server.until(lambda: kinds(server.said).count("Health") == 3)
        outbox.put_sample({"power_watts": [1]}, at=1.0)
        await server.until(lambda: "Sample" in kinds(server.said))
        server.answer = lambda frame: Ack(frame.boot, frame.seq, 0.0)
        said = kinds(server.said).count("Health")
        await server.until(lambda: kinds(server.said).count("Health") == said + 1)
        assert len({frame.seq for frame in server.said}) == len(server.said)
        await asyncio.sleep(0.05)
        assert outbox.next_change() is None
        assert len(server.sessions) == 1

    run(test)


def test_the_server_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 pauses grow with each refusal, and are short again after a frame that was taken."""
    asked: list[int] = []

    def remembered(attempt: int) -> float:
        asked.append(attempt)
        return 0.001

    monkeypatch.setattr(sessions, "again_seconds", remembered)

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        server.answer = refusing(Inventory, "the database is away", again=True, want="inventory")
        outbox.put_inventory(BODY)
        await server.until(lambda: kinds(server.said).count("Inventory") == 3)
        server.answer = lambda frame: Ack(frame.boot, frame.seq, 0.0)
        await server.until(lambda: kinds(server.said).count("Inventory") == 4)
        server.answer = refusing(Health, "the database is away", again=True)
        outbox.put_health({"GPU-1": "Xid 79"})
        await server.until(lambda: kinds(server.said).count("Health") == 2)
        assert asked[:4] == [1, 2, 3, 1]

    run(test)


def test_a_refused_inventory_is_not_said_for_ever() -> None:
    """NODE-2 however often the server asks; what comes behind it is said, and it is said when it changed."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        await server.until(lambda: kinds(server.said) == ["Hello"])
        server.answer = lambda frame: Ack(
            frame.boot, frame.seq, 0.0, "devices[0].uuid is another node's" if isinstance(frame, Inventory) else "",
            "inventory",
        )  # fmt: skip
        outbox.put_inventory(BODY)
        for number in range(3):
            outbox.put_health({"GPU-1": f"Xid {number}"})
            want = [*kinds(server.said), "Health"] if number else ["Hello", "Inventory", "Health"]
            await server.until(partial(said_so_far, server, want))
        await asyncio.sleep(0.1)
        assert kinds(server.said) == ["Hello", "Inventory", "Health", "Health", "Health"]
        outbox.put_inventory(TURNED)
        await server.until(lambda: kinds(server.said)[-1] == "Inventory")

    run(test)


def test_a_server_that_always_asks_is_not_flooded(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 the first time at once, then after pauses; each ack is heeded once."""
    monkeypatch.setattr(sessions, "again_seconds", lambda attempt: 0.001 if attempt == 1 else 60.0)

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        server.answer = lambda frame: Ack(frame.boot, frame.seq, 0.0, "", "inventory")
        outbox.put_inventory(BODY)
        await server.until(lambda: kinds(server.said).count("Inventory") == 2)
        for _turn in range(10):
            outbox.put_sample({"power_watts": [1, 2]}, at=1.0)
            await asyncio.sleep(0.01)
        assert kinds(server.said).count("Inventory") == 2

    run(test)


def test_samples_say_their_order_where_the_server_may_not_know_it() -> None:
    """NODE-1 before the first inventory, and while a changed one cannot be taken; figures are never another GPU's."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        for _turn in range(2):
            outbox.put_sample({}, at=1.0)
        await server.until(lambda: kinds(server.said).count("Sample") == 2)
        outbox.put_inventory(BODY)
        outbox.put_sample({"power_watts": [1, 2]}, at=2.0)
        await server.until(lambda: kinds(server.said).count("Sample") == 3)
        server.answer = refusing(Inventory, "the database is away", again=True)
        outbox.put_inventory(TURNED)
        for _turn in range(2):
            outbox.put_sample({"power_watts": [2, 1]}, at=3.0)
        await server.until(lambda: kinds(server.said).count("Sample") == 5)
        said = [(one.devices, one.power_watts) for one in server.said if isinstance(one, Sample)]
        assert said == [([], []), (None, []), (None, [1, 2]), (["GPU-2", "GPU-1"], [2, 1]), (None, [2, 1])]

    run(test)


def test_hello_says_the_order_of_the_last_inventory() -> None:
    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        outbox.put_inventory(TURNED)
        await server.until(lambda: kinds(server.said) == ["Hello", "Inventory"])
        server.answer = lambda _: None
        outbox.put_health({"GPU-1": "Xid 79"})
        await server.until(lambda: len(server.sessions) >= 2)
        await server.until(lambda: bool(server.sessions[1]))
        hello = server.sessions[1][0]
        assert isinstance(hello, Hello)
        assert hello.devices == ["GPU-2", "GPU-1"]

    run(test)


@pytest.mark.parametrize("kind", [Inventory, Health, Checkpoint, Details])
def test_what_ends_two_sessions_is_not_said_again(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    """NODE-2 the frame is at fault, is logged, and what is well goes on; it is said again when it changed."""

    async def test(server: Server, outbox: Outbox, _: Session) -> None:
        server.code = 1008
        server.answer = lambda frame: None if isinstance(frame, kind) else Ack(frame.boot, frame.seq, 0.0)
        outbox.put_inventory(BODY)
        outbox.put_health({"GPU-1": "Xid 79"})
        outbox.put_checkpoint([])
        outbox.put_details([DeviceDetails(ecc_corrected=1), DeviceDetails()])
        name = kind.__name__
        await server.until(lambda: len(server.sessions) == 3)
        outbox.put_sample({"power_watts": [1, 2]}, at=1.0)
        await server.until(lambda: "Sample" in kinds(server.sessions[-1]))
        assert kinds(server.said).count(name) == 2
        assert {"Inventory", "Health", "Checkpoint", "Details"} - {name} <= set(kinds(server.said))
        assert "session.unsayable" in caplog.text
        server.answer = lambda frame: Ack(frame.boot, frame.seq, 0.0)
        outbox.put_inventory(BODY)
        outbox.put_health({"GPU-1": "Xid 48"})
        outbox.put_checkpoint([])
        outbox.put_details([DeviceDetails(ecc_corrected=2), DeviceDetails()])
        await server.until(lambda: kinds(server.said).count(name) == 3)

    run(test)
