"""Frames that take long to read, and those that say that they are longer than they are."""

from __future__ import annotations

import threading

import pytest

from agent.protocol import AgentFrame, Inventory, decode_ack, decode_received, encode
from nodes.live import flush, ingest
from nodes.live.ingest import INLINE_BYTES, answer_frame
from nodes.live.samples import SampleTable
from tests.unit.nodes.live.actors import AGENT
from tests.unit.nodes.live.test_ingest import HELLO, ORDER, Peer, Remembered


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "ensure_running", lambda: None)


@pytest.fixture
def table() -> SampleTable:
    return SampleTable()


@pytest.fixture
def record() -> Remembered:
    return Remembered()


def long_inventory(seq: int = 2) -> Inventory:
    return Inventory("b1", seq, 101.0, {"gpus": ORDER, "labels": "x" * (INLINE_BYTES + 1)})


@pytest.mark.parametrize("way", ["session", "post"])
async def test_a_long_frame_is_read_off_the_event_loop(
    way: str, monkeypatch: pytest.MonkeyPatch, table: SampleTable, record: Remembered
) -> None:
    """Up to 256 KiB are read in a thread: all other agents would wait for it. Short ones never leave the loop."""
    where: list[tuple[int, bool]] = []

    def noted(body: bytes) -> AgentFrame:
        where.append((len(body), threading.current_thread() is threading.main_thread()))
        return decode_received(body)

    monkeypatch.setattr(ingest, "decode_received", noted)
    if way == "session":
        peer = Peer(table, record)
        assert (await peer.next())["type"] == "websocket.accept"
        peer.send(HELLO, long_inventory())
        await peer.ack()
        assert (await peer.ack()).problem == ""
        await peer.leave()
    else:
        for frame in (HELLO, long_inventory()):
            assert (await answer_frame(encode(frame), node="n1", actor=AGENT, table=table, record=record))[0] == 200
    assert [(length > INLINE_BYTES, on_loop) for length, on_loop in where] == [(False, True), (True, False)]
    assert record.inventories["n1"]["gpus"] == ORDER


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x94\xa9inventory\xa2b1\x01\xcb" + b"\x00" * 8 + b"\x81\xa1a" + b"\x91" * 200_000, id="deep"),
        pytest.param(
            b"\x95\xa9inventory\xa2b1\x01\xcb" + b"\x00" * 8 + b"\x81\xa1a\xdd\x00\x03\x00\x00" + b"\x90" * 196_607,
            id="cut short",
        ),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="four thousand million entries that are not there"),
        pytest.param(b"\x92\xa9inventory\xdb\xff\xff\xff\xff", id="a text that is not there"),
    ],
)
async def test_frames_that_cannot_be_read_are_refused(body: bytes, table: SampleTable, record: Remembered) -> None:
    status, answer = await answer_frame(body, node="n1", actor=AGENT, table=table, record=record)
    assert status == 400
    assert decode_ack(answer).problem
