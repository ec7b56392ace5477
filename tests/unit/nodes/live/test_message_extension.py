"""Samples that are taken where they arrive: the same as by the session's task, whatever comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agent.protocol import Details, DeviceDetails, Frame, Health, Hello, Inventory, Sample, decode_ack, encode
from nodes.live import flush, ingest, rate_limit
from nodes.live.ingest import agent_socket
from nodes.live.message_extension import AT_ONCE
from nodes.live.samples import SampleTable
from tests.unit.nodes.live.actors import agent_of
from tests.unit.nodes.live.test_ingest import HELLO, Remembered

Take = Callable[[bytes], bool]
NOW = 1e9
"""All that is later is the time of the test."""


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "ensure_running", lambda: None)


class Line:
    """One session. `at_once`: whether messages are offered as they arrive."""

    def __init__(self, *, at_once: bool, node: str = "n1", table: SampleTable | None = None) -> None:
        self.table = table or SampleTable()
        self.record = Remembered()
        self.said: list[tuple[Any, ...]] = []
        self.taken = 0
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in.put_nowait({"type": "websocket.connect"})
        self._takes: list[Take] = []
        scope = {"extensions": {AT_ONCE: self._takes.append} if at_once else {}}
        self.session = asyncio.create_task(
            agent_socket(
                scope,
                self._in.get,
                self._sent,
                node=node,
                actor=agent_of(node),
                table=self.table,
                record=self.record,
            )
        )

    async def _sent(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            ack = decode_ack(message["bytes"])
            self.said.append((ack.boot, ack.seq, ack.problem, ack.want, ack.again))
        elif message["type"] == "websocket.close":
            self.said.append((message["code"], message["reason"]))

    def arrive(self, frame: Frame | bytes | str) -> None:
        """As a listener passes a message on."""
        if isinstance(frame, str):
            self._in.put_nowait({"type": "websocket.receive", "text": frame})
            return
        body = frame if isinstance(frame, bytes) else encode(frame)
        if self._takes and self._in.empty() and self._takes[0](body):
            self.taken += 1
        else:
            self._in.put_nowait({"type": "websocket.receive", "bytes": body})

    async def idle(self) -> None:
        """Until the session's task has handled everything."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await self.session


def watts(seq: int, *values: float | None, boot: str = "b1", time: float = 100.0, **more: Any) -> Sample:
    return Sample(boot, seq, time + seq, power_watts=list(values), **more)


async def outcome(frames: Sequence[Frame | bytes | str], *, at_once: bool, pause: bool) -> tuple[Line, tuple[Any, ...]]:
    """The line after these frames, and all that can be seen of it. `pause`: after each frame."""
    line = Line(at_once=at_once)
    await line.idle()
    for frame in frames:
        line.arrive(frame)
        if pause:
            await line.idle()
    await line.idle()
    if not line.session.done():
        await line.leave()
    view = line.table.view("n1")
    seen = view and (view.boot, view.seq, min(view.time, NOW), view.devices, view.power_watts, view.temperature_celsius)
    return line, (line.said, seen, line.table.details("n1") is not None, line.record.sick, line.record.inventories)


@pytest.mark.parametrize(
    ("frames", "want_taken"),
    [
        pytest.param([HELLO, watts(2, 1, 2), watts(3, 3, None)], 2, id="one after the other"),
        pytest.param([HELLO, watts(5, 1, 2), watts(5, 9, 9), watts(4, 9, 9)], 3, id="replayed and out of order"),
        pytest.param([HELLO, watts(2, 1.4, float("nan")), watts(3)], 2, id="to be cleaned, and nothing measured"),
        pytest.param([HELLO, watts(2, 1, 2, time=1e10)], 1, id="a clock from the future"),
        pytest.param([HELLO, watts(2, 7, devices=["GPU-9"]), watts(3, 8)], 2, id="devices that change"),
        pytest.param([HELLO, watts(2, 1, 2, boot="b2")], 0, id="another boot"),
        pytest.param([HELLO, watts(2, 1)], 0, id="a value for each of two"),
        pytest.param([HELLO, encode(watts(2, 1, 2))[:-1]], 0, id="cut off"),
        pytest.param([HELLO, b"", watts(2, 1, 2)], 0, id="nothing"),
        pytest.param([HELLO, "words"], 0, id="text"),
        pytest.param([watts(1, 1, 2)], 0, id="no hello"),
        pytest.param([Hello("b1", 1, 100.0, "n1"), watts(2, 1)], 0, id="an order nobody knows"),
        pytest.param(
            [Hello("b1", 1, 1.0, "n1"), Inventory("b1", 2, 1.0, {"gpus": ["GPU-7"]}), watts(3, 5)], 1, id="told later"
        ),
        pytest.param(
            [HELLO, Health("b1", 2, 101.0, {"GPU-1": "Xid"}), watts(3, 1, 2), Health("b1", 4, 1.0, {"GPU-1": ""})],
            1,
            id="between changes",
        ),
        pytest.param([HELLO, Details("b1", 2, 1.0, [DeviceDetails()] * 2), watts(3, 1, 2)], 1, id="details"),
        pytest.param([HELLO, watts(2, *[1] * 60_000)], 0, id="too many values"),
        pytest.param([HELLO, *[watts(seq, 1, 2) for seq in range(2, rate_limit.FRAMES_AT_ONCE + 9)]], None, id="fast"),
    ],
)
async def test_it_makes_no_difference(
    frames: list[Frame | bytes | str], want_taken: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NODE-2 the same samples are kept, the same answers are given, and a session ends with the same words."""
    # limits by the second let more through on a machine at work
    monkeypatch.setattr(ingest, "time", SimpleNamespace(monotonic=lambda: 1000.0, time=time.time))
    _, want = await outcome(frames, at_once=False, pause=True)
    line, found = await outcome(frames, at_once=True, pause=True)
    assert found == want
    if want_taken is not None:
        assert line.taken == want_taken
    _, at_full_speed = await outcome(frames, at_once=True, pause=False)
    assert at_full_speed == want


async def test_a_sample_does_not_overtake_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 while an inventory is being stored, the samples behind it wait: their order of devices is the new one."""
    line = Line(at_once=True)
    stored = asyncio.Event()

    async def slowly(node: str, body: Any, actor: Any) -> tuple[str, ...]:
        await stored.wait()
        return ("GPU-7",)

    monkeypatch.setattr(line.record, "inventory", slowly)
    await line.idle()
    line.arrive(HELLO)
    await line.idle()
    line.arrive(Inventory("b1", 2, 101.0, {}))
    await line.idle()
    line.arrive(watts(3, 70))
    await line.idle()
    assert (line.taken, line.table.view("n1")) == (0, None)
    stored.set()
    await line.idle()
    view = line.table.view("n1")
    assert view is not None
    assert (view.devices, view.power_watts) == (("GPU-7",), (70,))
    await line.leave()


async def test_an_agent_that_was_superseded_is_told() -> None:
    """NODE-2 its samples are not taken at once, so its session ends as it always did."""
    older = Line(at_once=True)
    newer = Line(at_once=True, table=older.table)
    for line, boot, at in ((older, "b1", 100.0), (newer, "b2", 200.0)):
        await line.idle()
        line.arrive(Hello(boot, 1, at, "n1", "", ["GPU-0"]))
        await line.idle()
    older.arrive(watts(2, 1, time=300.0))
    await older.idle()
    assert older.said[-1] == (1008, "another agent of this node has begun")
    newer.arrive(watts(2, 3, boot="b2", time=300.0))
    await newer.leave()
    assert newer.taken == 1
    view = newer.table.view("n1")
    assert view is not None
    assert view.power_watts == (3,)


async def test_a_session_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 samples alone do not keep a session open."""
    monkeypatch.setattr(ingest, "SESSION_SECONDS", 0.0)
    line = Line(at_once=True)
    await line.idle()
    line.arrive(HELLO)
    await line.idle()
    assert line.said[-1] == (1012, "sign in again")
