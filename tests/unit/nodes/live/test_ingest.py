"""Agents' sessions and posts, driven as an ASGI server drives them, with a record that only remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from django.db import connections

from access.actors import Actor
from access.errors import BadInput, GpuplaneError, Unavailable
from agent.protocol import (
    FRAME_LIMIT,
    Ack,
    Checkpoint,
    CheckpointEntry,
    Details,
    DeviceDetails,
    Frame,
    Health,
    Hello,
    Inventory,
    Sample,
    decode_ack,
    encode,
)
from nodes.live import flush, ingest, threads
from nodes.live.ingest import Record, agent_socket, answer_frame
from nodes.live.samples import SampleTable
from nodes.models import Device
from tests.unit.nodes.live.actors import AGENT, OTHERS, agent_of

ORDER = ["GPU-0", "GPU-1"]
HELLO = Hello("b1", 1, 100.0, "n1", "1.0", ORDER)


def plain(ack: Ack) -> Ack:
    """The ack without the server's time."""
    return msgspec.structs.replace(ack, time=0.0)


class Remembered(Record):
    """A record in memory that can be told to refuse."""

    def __init__(self) -> None:
        self.inventories: dict[str, Mapping[str, Any]] = {}
        self.sick: dict[str, str] = {}
        self.given: dict[str, list[CheckpointEntry]] = {}
        self.refusal: Exception | None = None

    async def inventory(self, node: str, frame: Inventory, actor: Actor) -> tuple[str, ...]:
        self._refuse()
        self.inventories[node] = frame.node
        return tuple(frame.node["gpus"])

    async def health(self, node: str, frame: Health, actor: Actor) -> None:
        self._refuse()
        self.sick.update(frame.health)

    async def checkpoint(self, node: str, frame: Checkpoint, actor: Actor) -> None:
        self._refuse()
        self.given[node] = list(frame.entries)

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class Peer:
    """The agent's end of one ASGI WebSocket."""

    def __init__(self, table: SampleTable, record: Remembered, *, node: str = "n1", actor: Actor | None = None) -> None:
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in.put_nowait({"type": "websocket.connect"})
        speaker = actor or agent_of(node)
        self.session = asyncio.create_task(
            agent_socket({}, self._in.get, self._sent, node=node, actor=speaker, table=table, record=record)
        )

    async def _sent(self, message: Any) -> None:
        self._out.put_nowait(dict(message))

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            self.send_bytes(encode(frame))

    def send_bytes(self, body: bytes) -> None:
        self._in.put_nowait({"type": "websocket.receive", "bytes": body})

    def send_text(self, text: str) -> None:
        self._in.put_nowait({"type": "websocket.receive", "text": text})

    async def leave(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await self.session

    async def next(self) -> dict[str, Any]:
        return await self._out.get()

    async def ack(self) -> Ack:
        return decode_ack((await self.next())["bytes"])

    async def closed(self) -> tuple[int, str]:
        while (message := await self.next())["type"] != "websocket.close":
            pass
        await self.session
        return message["code"], message["reason"]


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions here have a table of their own; the process's flusher is tested in test_flush.py."""
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


async def test_samples_of_a_session_arrive(peer: Peer, table: SampleTable) -> None:
    """NODE-2 after hello every sample is the node's latest, and needs no answer."""
    peer.send(HELLO)
    assert plain(await peer.ack()) == Ack("b1", 1, 0.0)
    for seq in (2, 3):
        peer.send(Sample("b1", seq, 100.0 + seq, utilisation_percent=[seq * 10, None]))
    await peer.leave()
    view = table.latest()["n1"]
    assert (view.devices, view.utilisation_percent, view.seq) == (tuple(ORDER), (30, None), 3)


async def test_inventory_says_the_order_when_hello_does_not(peer: Peer, table: SampleTable, record: Remembered) -> None:
    peer.send(Hello("b1", 1, 100.0, "n1"))
    assert (await peer.ack()).want == "inventory"
    peer.send(Sample("b1", 2, 101.0, power_watts=[70]))
    unread = await peer.ack()
    assert (unread.seq, unread.want) == (2, "inventory")
    peer.send(Inventory("b1", 3, 102.0, {"gpus": ["GPU-7"]}))
    assert plain(await peer.ack()) == Ack("b1", 3, 0.0)
    peer.send(Sample("b1", 4, 103.0, power_watts=[71]))
    await peer.leave()
    assert record.inventories == {"n1": {"gpus": ["GPU-7"]}}
    assert table.latest()["n1"].power_watts == (71,)


async def test_change_of_state_outlives_a_disconnect(table: SampleTable, record: Remembered) -> None:
    """NODE-2 a state frame whose ack was lost is said again in the next session, under a new number, and counts
    once.
    """
    first = Peer(table, record)
    first.send(HELLO, Health("b1", 2, 101.0, {"GPU-1": "Xid 79"}))
    await first.leave()
    assert record.sick == {"GPU-1": "Xid 79"}
    again = Peer(table, record)
    again.send(Hello("b1", 3, 102.0, "n1", "1.0", ORDER), Health("b1", 4, 103.0, {"GPU-1": ""}))
    replay = Health("b1", 2, 101.0, {"GPU-1": "Xid 79"})
    again.send(replay)
    await again.next()
    assert [(ack.seq, bool(ack.problem), ack.again) for ack in [await again.ack() for _ in range(3)]] == [
        (3, False, False),
        (4, False, False),
        (2, True, True),
    ]
    await again.leave()
    assert record.sick == {"GPU-1": ""}


@pytest.mark.parametrize(
    ("refusal", "want", "want_again"),
    [
        pytest.param(BadInput("devices[0].uuid must be …"), "devices[0].uuid must be …", False, id="a rule broken"),
        pytest.param(GpuplaneError("not now"), "not now", False, id="not stored"),
        pytest.param(Unavailable("the database is away"), "the database is away", True, id="for a while"),
    ],
)
async def test_refused_inventory_keeps_the_session(
    peer: Peer, record: Remembered, refusal: Exception, want: str, *, want_again: bool
) -> None:
    """NODE-2 and says whether it is worth saying again."""
    record.refusal = refusal
    peer.send(HELLO, Inventory("b1", 2, 101.0, {"gpus": []}), Sample("b1", 3, 102.0, power_watts=[1, 2]))
    await peer.ack()
    ack = await peer.ack()
    assert (ack.problem, ack.again) == (want, want_again)
    assert not peer.session.done()


async def test_a_checkpoint_is_stored(peer: Peer, record: Remembered) -> None:
    """DEV-8 (part) what the kubelet gave replaces what was said before; an older frame does not."""
    entry = CheckpointEntry("pod-1", "main", "nvidia.com/gpu", ["GPU-1"])
    peer.send(
        HELLO, Checkpoint("b1", 2, 101.0, [entry]), Checkpoint("b1", 4, 102.0, []), Checkpoint("b1", 3, 103.0, [entry])
    )
    assert [bool((await peer.ack()).problem) for _ in range(4)] == [False, False, False, True]
    assert record.given == {"n1": []}


async def test_details_need_no_answer(peer: Peer, table: SampleTable) -> None:
    """NODE-1 the newest of links and processes, whether or not it was said before."""
    peer.send(
        HELLO, *(Details("b1", seq, 101.0, [DeviceDetails(ecc_corrected=seq), DeviceDetails()]) for seq in (2, 3))
    )
    await peer.ack()
    await peer.leave()
    found = table.details("n1")
    assert found is not None
    assert found.of("GPU-0") == DeviceDetails(ecc_corrected=3)


async def test_details_of_nobody_knows_which_devices(peer: Peer, table: SampleTable) -> None:
    peer.send(Hello("b1", 1, 100.0, "n1"))
    await peer.ack()
    peer.send(Details("b1", 2, 101.0, [DeviceDetails()]))
    assert (await peer.ack()).want == "inventory"
    await peer.leave()
    assert table.details("n1") is None


async def test_the_agent_that_began_last_counts(table: SampleTable, record: Remembered) -> None:
    """NODE-2 of two agents of one node the older one's session ends, so that it is seen that there are two."""
    older, newer = Peer(table, record), Peer(table, record)
    for one, boot, at in ((older, "b1", 100.0), (newer, "b2", 200.0)):
        assert (await one.next())["type"] == "websocket.accept"
        one.send(Hello(boot, 1, at, "n1", "", ORDER))
        await one.ack()
    older.send(Sample("b1", 2, 300.0, power_watts=[1, 2]))
    code, reason = await older.closed()
    assert (code, reason) == (1008, "another agent of this node has begun")
    newer.send(Sample("b2", 2, 201.0, power_watts=[3, 4]))
    await newer.leave()
    assert table.latest()["n1"].power_watts == (3, 4)


@pytest.mark.parametrize(
    ("frames", "want"),
    [
        pytest.param([HELLO, Details("b1", 2, 101.0, [DeviceDetails()])], "details of 1 devices", id="short details"),
        pytest.param([Sample("b1", 1, 1.0)], "first frame", id="no hello first"),
        pytest.param([Hello("b1", 1, 1.0, "n2")], "another node", id="another node's hello"),
        pytest.param([HELLO, Sample("b2", 2, 101.0)], "one boot", id="another boot"),
        pytest.param([HELLO, Sample("b1", 2, 101.0, power_watts=[1])], "1 values for 2", id="a short column"),
    ],
)
async def test_broken_rule_ends_the_session(peer: Peer, table: SampleTable, frames: list[Frame], want: str) -> None:
    """NODE-2 a bad frame ends its own session, with the rule as the reason, and no other."""
    other = Peer(table, Remembered(), node="n9")
    other.send(Hello("b", 1, 1.0, "n9", "", ["GPU-9"]))
    peer.send(*frames)
    code, reason = await peer.closed()
    assert code == 1008
    assert want in reason
    other.send(Sample("b", 2, 2.0, power_watts=[9]))
    await other.leave()
    assert table.latest()["n9"].power_watts == (9,)
    assert "n1" not in table.latest()


async def test_replayed_hello_ends_the_session(table: SampleTable, record: Remembered, peer: Peer) -> None:
    peer.send(HELLO)
    await peer.ack()
    replayed = Peer(table, record)
    replayed.send(HELLO)
    assert (await replayed.closed())[0] == 1008


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(b"\xc1", 1008, id="not MessagePack"),
        pytest.param(b"\x00" * (FRAME_LIMIT + 1), 1009, id="too large"),
    ],
)
async def test_bytes_that_are_no_frame(peer: Peer, body: bytes, want: int) -> None:
    peer.send_bytes(body)
    code, reason = await peer.closed()
    assert code == want
    assert len(reason.encode()) <= 123


async def test_text_is_refused(peer: Peer) -> None:
    peer.send_text("hello")
    assert await peer.closed() == (1003, "frames are binary")


async def test_session_without_hello_is_ended(monkeypatch: pytest.MonkeyPatch, table: SampleTable) -> None:
    monkeypatch.setattr(ingest, "HELLO_SECONDS", 0.0)
    assert (await Peer(table, Remembered()).closed())[0] == 1008


async def test_our_failure_says_so(peer: Peer, record: Remembered) -> None:
    record.refusal = ZeroDivisionError("a bug")
    peer.send(HELLO, Health("b1", 2, 101.0, {}))
    assert (await peer.closed())[0] == 1011


@pytest.mark.parametrize("actor", OTHERS, ids=lambda actor: actor.name)
async def test_others_do_not_speak_for_a_node(table: SampleTable, actor: Actor) -> None:
    peer = Peer(table, Remembered(), actor=actor)
    peer.send(HELLO)
    assert (await peer.closed())[0] == 1008
    assert (await answer_frame(encode(HELLO), node="n1", actor=actor, table=table))[0] == 403
    assert not table.knows_order("n1")


@pytest.mark.parametrize(
    ("body", "want", "want_problem"),
    [
        pytest.param(encode(Sample("b1", 1, 1.0, [5], devices=["GPU-0"])), 200, "", id="a sample with its order"),
        pytest.param(encode(Sample("b1", 1, 1.0, [5])), 409, "order", id="a sample without"),
        pytest.param(encode(Inventory("b1", 1, 1.0, {"gpus": ["GPU-0"]})), 200, "", id="an inventory"),
        pytest.param(encode(Hello("b1", 1, 1.0, "n2")), 400, "another node", id="another node's hello"),
        pytest.param(b"{}", 400, "array", id="JSON"),
        pytest.param(b"\x00" * (FRAME_LIMIT + 1), 413, "at most", id="too large"),
    ],
)
async def test_posts(body: bytes, want: int, want_problem: str, table: SampleTable, record: Remembered) -> None:
    status, answer = await answer_frame(body, node="n1", actor=AGENT, table=table, record=record)
    assert status == want
    assert want_problem in decode_ack(answer).problem
    assert bool(want_problem) == bool(decode_ack(answer).problem)


@pytest.mark.usefixtures("ledger_db")
def test_the_real_record_stores_what_agents_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 inventory and health of a session reach the database; bad ones are answered with field and rule."""
    pool = ThreadPoolExecutor(max_workers=1)  # threads of an earlier test hold connections to its database
    monkeypatch.setattr(threads, "_POOL", pool)
    node = {
        "name": "n1",
        "devices": [{"minor": m, "type": "gpu", "uuid": f"GPU-{m}", "model": "H100", "memory": "80Gi"} for m in (1, 0)],
        "links": [[0, 1, 18]],
    }
    gpu = {"type": "gpu", "model": "H100", "memory": "80Gi"}
    table = SampleTable()

    async def say(*frames: Frame) -> list[str]:
        posts = [await answer_frame(encode(frame), node="n1", actor=AGENT, table=table) for frame in frames]
        return [decode_ack(answer).problem for _, answer in posts]

    problems = asyncio.run(
        say(
            Inventory("b1", 1, 1.0, node),
            Health("b1", 2, 2.0, {"GPU-1": "Xid 79", "GPU-of-another-node": "Xid 79"}),
            Sample("b1", 3, 3.0, power_watts=[70, 71]),
            Inventory("b1", 4, 4.0, {**node, "name": "n2"}),
            Inventory("b1", 5, 5.0, {**node, "links": [[0, 0, -1]]}),
            Inventory("b1", 6, 6.0, {**node, "devices": [{**gpu, "minor": n, "uuid": f"GPU-{n}"} for n in range(65)]}),
        )
    )
    pool.submit(connections.close_all).result()
    pool.shutdown()
    assert [bool(problem) for problem in problems] == [False, False, False, True, True, True]
    assert "at most 64 GPUs" in problems[5]
    rows = set(Device.objects.values_list("node__name", "uuid", "healthy", "health_reason"))
    assert rows == {("n1", "GPU-0", True, ""), ("n1", "GPU-1", False, "Xid 79")}
    assert table.latest()["n1"].devices == ("GPU-0", "GPU-1")
