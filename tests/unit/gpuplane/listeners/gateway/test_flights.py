"""How a flight is cut, and how its tokens are counted."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from gpuplane.listeners.gateway.flights import ClientLeft, Flight, SlotLost


def flight() -> Flight:
    return Flight(request_id=uuid4(), model="chat", lora="", priority=0, user="u", token="t", arrived=0.0)


async def test_a_cut_is_met_where_the_flight_waits() -> None:
    """SLOT-9 as the error that was given; the task goes on afterwards."""
    one = flight()
    asyncio.get_running_loop().call_soon(one.cut, SlotLost("gone"))
    with pytest.raises(SlotLost, match="gone"), one.cuts():
        await asyncio.Event().wait()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_inner_one_takes_it_and_the_outer_one_the_next() -> None:
    one = flight()
    loop = asyncio.get_running_loop()

    async def twice() -> None:
        with one.cuts():
            loop.call_soon(one.cut, SlotLost("gone"))
            with pytest.raises(SlotLost), one.cuts():
                await asyncio.Event().wait()
            loop.call_soon(one.cut, ClientLeft("left"))
            await asyncio.Event().wait()

    with pytest.raises(ClientLeft):
        await twice()


async def test_a_cancellation_by_others_stays_one() -> None:
    """The server that stops cancels the task: no error of a flight."""

    async def run() -> None:
        with flight().cuts():
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        pytest.param([b'data: {"a": 1}\n\n', b"data: 2\n\ndata: [DONE]\n\n"], 2, id="events of a stream"),
        pytest.param([b"data: 1\n\n", b'data: {"usage": {"completion_tokens": 57}}\n\n'], 57, id="as its end says"),
        pytest.param([b'{"usage": {"completion_', b'tokens": 12}}'], 12, id="over two pieces"),
        pytest.param([b'{"usage": {"completion_to', b'kens": 1', b"2}}"], 12, id="over three pieces"),
        pytest.param(
            [b'data: {"usage": {"completion_tokens": 57}}\n\n', b"data: [DONE]\n", b"\n"],
            57,
            id="before small ones",
        ),
        pytest.param([b"da", b"ta: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"], 2, id="an event over two pieces"),
        pytest.param([bytes([one]) for one in b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"], 2, id="byte by byte"),
        pytest.param([b'{"object": "list"}'], 0, id="an answer without tokens"),
        pytest.param([], 0, id="no answer"),
    ],
)
async def test_tokens(pieces: list[bytes], want: int) -> None:
    """SLOT-9"""
    one = flight()
    for piece in pieces:
        one.passed(piece)
    assert one.tokens == want
