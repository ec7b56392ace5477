"""How fast a node may speak, by whichever way, and clocks that are wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from agent.protocol import Ack, Health, Hello, Sample, decode_ack, encode
from nodes.live import flush, sample_lag
from nodes.live.ingest import answer_frame
from nodes.live.samples import SampleTable
from tests.unit.nodes.live.actors import agent_of
from tests.unit.nodes.live.test_ingest import HELLO, ORDER, Peer, Remembered, plain


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions here have a table of their own."""
    monkeypatch.setattr(flush, "ensure_running", lambda: None)


@pytest.fixture
def table() -> SampleTable:
    return SampleTable()


@pytest.fixture
def record() -> Remembered:
    return Remembered()


@pytest.fixture
async def peer(table: SampleTable, record: Remembered) -> AsyncIterator[Peer]:
    """A peer whose session is accepted."""
    made = Peer(table, record)
    assert (await made.next())["type"] == "websocket.accept"
    yield made
    if not made.session.done():
        await made.leave()


async def test_a_session_that_never_stops_talking_ends(peer: Peer) -> None:
    """NODE-2 far more frames than an agent has to send: only this session ends."""
    peer.send(HELLO, *(Health("b1", 2 + number, 101.0, {}) for number in range(400)))
    assert await peer.closed() == (1008, "more than 10 frames a second")


async def test_posts_and_sockets_have_one_allowance(peer: Peer, table: SampleTable, record: Remembered) -> None:
    """NODE-2 a node that sends by both ways is told by both that it is too fast; another node is served."""

    async def post(seq: int, node: str = "n1") -> tuple[int, str]:
        status, answer = await answer_frame(
            encode(Sample("b1", seq, 101.0, power_watts=[1, 2], devices=ORDER)),
            node=node,
            actor=agent_of(node),
            table=table,
            record=record,
        )
        return status, decode_ack(answer).problem

    peer.send(HELLO)
    await peer.ack()
    statuses = [(await post(2 + number))[0] for number in range(250)]
    taken = statuses.count(200)
    assert statuses == [200] * taken + [429] * (250 - taken)
    assert 150 < taken < 220
    assert await post(900) == (429, "more than 10 frames a second")
    peer.send(Health("b1", 901, 101.0, {}))
    assert await peer.closed() == (1008, "more than 10 frames a second")
    assert (await post(1, node="n9"))[0] == 200


async def test_changes_of_the_record_have_a_pace_of_their_own(peer: Peer, record: Remembered) -> None:
    """NODE-2 who changes the record again and again is told to say it later; samples go on, and the session stays."""
    peer.send(HELLO, *(Health("b1", 2 + number, 101.0, {"GPU-0": str(number)}) for number in range(60)))
    acks = [await peer.ack() for _ in range(61)]
    refused = [ack for ack in acks if ack.problem]
    assert 30 < len(refused) <= 40
    assert all(ack.again for ack in refused)
    assert not peer.session.done()


async def test_a_new_session_has_no_new_allowance(table: SampleTable, record: Remembered) -> None:
    """NODE-2 who was too fast is so in the next session as well."""
    first = Peer(table, record)
    first.send(HELLO, *(Health("b1", 2 + number, 101.0, {}) for number in range(400)))
    assert (await first.closed())[1] == "more than 10 frames a second"
    second = Peer(table, record)
    second.send(
        Hello("b1", 900, 101.0, "n1", "1.0", ORDER), *(Health("b1", 901 + number, 101.0, {}) for number in range(100))
    )
    assert (await second.closed())[1] == "more than 10 frames a second"


async def test_a_clock_a_little_ahead_keeps_nobody_out(table: SampleTable, record: Remembered) -> None:
    """NODE-2 an agent whose clock was less than a minute ahead starts again with its clock set right, and is heard at
    once.
    """
    for boot, ahead in (("b1", 50.0), ("b2", 0.0), ("b3", 20.0), ("b4", 0.0)):
        one = Peer(table, record)
        assert (await one.next())["type"] == "websocket.accept"
        sent = time.time() + ahead
        one.send(Hello(boot, 1, sent, "n1", "", ORDER), Sample(boot, 2, sent, power_watts=[1, 2]))
        assert plain(await one.ack()) == Ack(boot, 1, 0.0)
        await one.leave()
        assert table.latest()["n1"].boot == boot


async def test_a_clock_from_the_future_keeps_nobody_out(table: SampleTable, record: Remembered) -> None:
    """NODE-2 such a time is taken as now, and counted; the agent that starts again with its clock set right is heard at
    once.
    """
    counted = sample_lag.CLOCKS_OFF._value.get()
    year = time.time() + 365 * 86_400
    wrong, right = Peer(table, record), Peer(table, record)
    for one in (wrong, right):
        assert (await one.next())["type"] == "websocket.accept"
    wrong.send(Hello("b1", 1, year, "n1", "", ORDER), Sample("b1", 2, year, power_watts=[1, 2]))
    await wrong.ack()
    await wrong.leave()
    assert table.latest()["n1"].power_watts == (1, 2)
    assert abs(table.latest()["n1"].time - time.time()) < 60
    assert sample_lag.CLOCKS_OFF._value.get() == counted + 1
    right.send(Hello("b2", 1, time.time() + 1, "n1", "", ORDER), Sample("b2", 2, time.time() + 2, power_watts=[3, 4]))
    assert plain(await right.ack()) == Ack("b2", 1, 0.0)
    await right.leave()
    assert table.latest()["n1"].power_watts == (3, 4)
