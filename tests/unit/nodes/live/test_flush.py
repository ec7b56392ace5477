"""Samples between processes, through a real Redis and without one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import cast

import msgspec
import pytest
import redis.asyncio
import structlog.testing
from django.db import OperationalError, ProgrammingError

from agent.protocol import Details, DeviceDetails, Sample
from nodes.history import ring
from nodes.history.ring_seconds import moments_of, second_of
from nodes.live import agent_liveness
from nodes.live.flush import DETAILS_ROUNDS, PRESENCE_SECONDS, PRUNE_ROUNDS, Flusher
from nodes.live.samples import (
    DETAILS_KEY,
    FORGET_SECONDS,
    MOST_NODES,
    SAMPLES_KEY,
    DetailsView,
    LastHeard,
    SampleTable,
)

EPOCH = 1_800_000_000.0


class Process:
    """One web process: its table and flusher, stepped by hand."""

    def __init__(self, client: redis.asyncio.Redis, *, most_nodes: int = MOST_NODES) -> None:
        self.table = SampleTable(most_nodes=most_nodes)
        self.heard: list[Mapping[str, LastHeard]] = []
        self.failure: Exception | None = None
        self.flusher = Flusher(self.table, client, write_presence=self._write)
        self.now = 0.0
        self.clock_ahead = 0.0
        """Seconds by which its wall clock was set forward."""

    @property
    def epoch(self) -> float:
        return EPOCH + self.now + self.clock_ahead

    async def _write(self, heard: Mapping[str, LastHeard]) -> None:
        if self.failure is not None:
            raise self.failure
        self.heard.append(heard)

    def sample(self, node: str, seq: int, percent: int) -> None:
        frame = Sample("b", seq, float(seq), [percent], devices=["GPU-0"])
        self.table.put(node, frame, now=self.now, received_at=self.epoch)

    def tell(self, node: str, seq: int) -> None:
        frame = Details("b", seq, float(seq), [DeviceDetails(ecc_corrected=3)], ["GPU-0"])
        self.table.put_details(node, frame, now=self.now, received_at=self.epoch)

    async def round(self, *, reading: bool = True, seconds: float = 1.0) -> None:
        self.now += seconds
        self.flusher.read_until = self.now + 10 if reading else float("-inf")
        await self.flusher.round(now=self.now, epoch=self.epoch)

    def seen(self) -> dict[str, int | None]:
        return {name: view.utilisation_percent[0] for name, view in self.table.latest().items()}


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    made = redis.asyncio.Redis.from_url(redis_url)
    yield made
    await made.aclose()


async def test_one_process_reads_what_another_received(client: redis.asyncio.Redis) -> None:
    """NODE-2 every replica shows every node, whichever replica its agent talks to."""
    left, right = Process(client), Process(client)
    left.sample("n1", 1, 11)
    right.sample("n2", 1, 22)
    for process in (left, right, left):
        await process.round()
    assert left.seen() == right.seen() == {"n1": 11, "n2": 22}
    left.sample("n1", 2, 33)
    await left.round()
    await right.round()
    assert right.seen() == {"n1": 33, "n2": 22}


async def test_nobody_reading_fetches_nothing(client: redis.asyncio.Redis) -> None:
    left, right = Process(client), Process(client)
    left.sample("n1", 1, 11)
    await left.round(reading=False)
    await right.round(reading=False)
    assert right.seen() == {}


async def test_redis_down_keeps_samples_in_memory_and_says_so_once() -> None:
    gone = redis.asyncio.Redis.from_url("unix:///nonexistent/redis.sock")
    process = Process(gone)
    with structlog.testing.capture_logs() as logs:
        for seq in (1, 2, 3):
            process.sample("n1", seq, seq)
            await process.round()
    assert process.seen() == {"n1": 3}
    assert set(process.table.take_changed()) == {"n1"}
    assert [entry["event"] for entry in logs] == ["samples.redis_down"]


async def test_field_nobody_renews_is_dropped(client: redis.asyncio.Redis) -> None:
    dead, alive = Process(client), Process(client)
    dead.sample("n1", 1, 11)
    await dead.round()
    await client.hset(SAMPLES_KEY, "n3", b"of another version")
    await alive.round()
    assert alive.seen() == {"n1": 11}
    await alive.round(seconds=FORGET_SECONDS + 1)
    for _ in range(PRUNE_ROUNDS):
        await alive.round()
    assert alive.seen() == {}
    assert await client.hlen(SAMPLES_KEY) == 0


async def test_own_silent_nodes_leave_redis(client: redis.asyncio.Redis) -> None:
    process = Process(client)
    process.sample("n1", 1, 11)
    await process.round(reading=False)
    await process.round(reading=False, seconds=FORGET_SECONDS + 1)
    for _ in range(PRUNE_ROUNDS):
        await process.round(reading=False)
    assert await client.hlen(SAMPLES_KEY) == 0


async def test_listening_is_marked(client: redis.asyncio.Redis) -> None:
    process = Process(client)
    for _ in range(3):
        await process.round()
    ears = cast("dict[bytes, bytes]", await client.hgetall(agent_liveness.LISTENERS_KEY))
    since, dead = agent_liveness.listening_since_of(ears, epoch=EPOCH + process.now)
    assert since is not None
    assert (since.timestamp(), dead) == (EPOCH + 1, [])


async def test_presence_is_written_at_once_and_then_every_few_rounds(client: redis.asyncio.Redis) -> None:
    process = Process(client)
    process.sample("n1", 1, 11)
    await process.round()
    assert [set(heard) for heard in process.heard] == [{"n1"}]
    for seq in range(2, 2 + 2 * int(PRESENCE_SECONDS)):
        process.sample("n1", seq, 11)
        await process.round()
    assert [set(heard) for heard in process.heard] == [{"n1"}] * 3
    process.sample("n2", 1, 11)
    await process.round()
    assert "n2" in process.heard[-1]
    written = len(process.heard)
    for _ in range(2 * int(PRESENCE_SECONDS)):
        await process.round()
    assert len(process.heard) == written


async def test_presence_that_could_not_be_written_is_written_later(client: redis.asyncio.Redis) -> None:
    process = Process(client)
    process.sample("n1", 1, 11)
    process.failure = OperationalError("the database is away")
    await process.round()
    assert process.heard == []
    process.failure = None
    await process.round()
    assert [set(heard) for heard in process.heard] == [{"n1"}]


async def test_details_and_the_ring(client: redis.asyncio.Redis, redis_url: str) -> None:
    """VIEW-1 what was said of links and processes, and the last seconds, are in Redis for every process; with the node
    they go.
    """
    process = Process(client)
    process.sample("n1", 1, 11)
    process.table.put_details("n1", Details("b", 2, 1.0, [DeviceDetails(ecc_corrected=3)]), now=0.0, received_at=EPOCH)
    await process.flusher.round(now=1.0, epoch=time.time())
    found = msgspec.msgpack.decode(await cast("Awaitable[bytes]", client.hget(DETAILS_KEY, "n1")), type=DetailsView)
    assert found.of("GPU-0") == DeviceDetails(ecc_corrected=3)
    reader = redis.Redis.from_url(redis_url)
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", reader.xrange(f"{ring.KEY}{ring.bucket_of('n1')}"))
    reader.close()
    assert len(entries) == 1
    (moment,) = moments_of(second_of(entries[0][1][ring.FIELD]), "n1")
    assert (moment.node, moment.received_at, moment.columns[0]) == ("n1", EPOCH, (11,))


async def test_details_outlive_another_processes_memory(client: redis.asyncio.Redis) -> None:
    """NODE-2 a node whose agent went to another replica keeps its details when the first one forgets it; gone from all,
    they go.
    """
    left, right = Process(client), Process(client)
    for process, seq in ((left, 1), (right, 10)):
        process.sample("n1", seq, 11)
        process.tell("n1", seq + 1)
        await process.round()
    left.now += FORGET_SECONDS
    right.now = left.now
    right.sample("n1", 20, 11)
    await right.round()
    await left.round()
    assert await client.hlen(DETAILS_KEY) == 1
    right.now += FORGET_SECONDS + 1
    await right.round()
    assert (await client.hlen(SAMPLES_KEY), await client.hlen(DETAILS_KEY)) == (0, 0)


async def test_a_redis_that_was_emptied_knows_everything_again(client: redis.asyncio.Redis) -> None:
    """NODE-2 samples within a second, details within a minute, though nothing about them is new."""
    process = Process(client)
    process.sample("n1", 1, 11)
    process.tell("n1", 2)
    await process.round()
    await client.flushall()
    for seq in range(DETAILS_ROUNDS):
        process.sample("n1", 10 + seq, 11)
        await process.round()
    assert (await client.hlen(SAMPLES_KEY), await client.hlen(DETAILS_KEY)) == (1, 1)


async def test_the_ring_goes_by_the_clock_of_redis(client: redis.asyncio.Redis) -> None:
    """VIEW-1 a process whose clock is a year ahead takes nothing from the ring; what is old by Redis' clock goes."""
    process = Process(client)
    key = f"{ring.KEY}{ring.bucket_of('n1')}"
    for seq in range(3):
        process.sample("n1", seq, 11)
        await process.round()
    assert await client.xlen(key) == 3
    seconds, _ = await client.time()
    old = (seconds - ring.KEPT_SECONDS - 60) * 1000
    await client.delete(key)
    for number in range(300):
        await client.xadd(key, {ring.FIELD: b""}, id=f"{old + number}-0")
    process.sample("n1", 10, 11)
    await process.round()
    assert await client.xlen(key) < 200, "streams are trimmed by whole blocks of a hundred"


async def test_a_redis_that_hangs_makes_nobody_look_silent(client: redis.asyncio.Redis) -> None:
    """LEASE-5 presence is written by time, before Redis is asked; a process that could not renew its mark
    listens anew.
    """
    process = Process(client)
    process.sample("n1", 1, 11)
    await process.round()
    for seq in range(2, 5):
        process.sample("n1", seq, 11)
        await process.round(seconds=PRESENCE_SECONDS)
    assert len(process.heard) == 4, "every round, where rounds take so long"
    await process.round(seconds=agent_liveness.LISTENER_SECONDS + 1)
    ears = await cast("Awaitable[dict[bytes, bytes]]", client.hgetall(agent_liveness.LISTENERS_KEY))
    since, _ = agent_liveness.listening_since_of(ears, epoch=EPOCH + process.now)
    assert since is not None
    assert since.timestamp() == EPOCH + process.now


async def test_details_that_could_not_be_passed_on(client: redis.asyncio.Redis) -> None:
    """NODE-2 with Redis away they wait, as samples do."""
    away = redis.asyncio.Redis.from_url("unix:///nonexistent/redis.sock")
    process = Process(away)
    process.table.put_details("n1", Details("b", 2, 1.0, [DeviceDetails()], ["GPU-0"]), now=0.0, received_at=EPOCH)
    await process.round()
    assert process.flusher.redis_down
    back = Flusher(process.table, client, write_presence=process._write)
    await back.round(now=2.0, epoch=EPOCH)
    assert await client.hlen(DETAILS_KEY) == 1


async def test_an_agent_that_moved_to_another_process(client: redis.asyncio.Redis) -> None:
    """VIEW-1 the first process shows what the other one hears, though it has a sample of its own for every node."""
    left, right = Process(client), Process(client)
    left.sample("n1", 1, 11)
    left.sample("n2", 1, 12)
    await left.round()
    await right.round()
    for seq in range(2, 30):
        left.sample("n2", seq, 12)
        right.sample("n1", seq, 77)
        await right.round()
        await left.round()
    assert (right.seen()["n1"], left.seen()["n1"]) == (77, 77)


HOUR = 3600.0


async def test_silence_is_noticed_when_the_clock_of_a_process_went_back(client: redis.asyncio.Redis) -> None:
    """LEASE-5 it listens since the step, not since a time to come."""
    process = Process(client)
    await process.round()
    process.clock_ahead = -HOUR
    await process.round()
    stepped = process.epoch
    for _ in range(30):
        await process.round()
    marks = await cast("Awaitable[dict[bytes, bytes]]", client.hgetall(agent_liveness.LISTENERS_KEY))
    since, dropped = agent_liveness.listening_since_of(marks, epoch=process.epoch)
    assert since is not None
    assert since.timestamp() == stepped
    assert dropped == []


async def test_a_dead_process_whose_clock_was_ahead_does_not_listen(client: redis.asyncio.Redis) -> None:
    """LEASE-5 no node is silent for a time in which nobody listened."""
    process = Process(client)
    process.clock_ahead = HOUR
    await process.round()
    marks = await cast("Awaitable[dict[bytes, bytes]]", client.hgetall(agent_liveness.LISTENERS_KEY))
    since, dropped = agent_liveness.listening_since_of(marks, epoch=EPOCH + 60)
    assert since is None
    assert dropped == list(marks)


async def test_a_sample_of_a_clock_that_was_ahead_is_not_of_now(client: redis.asyncio.Redis) -> None:
    """VIEW-1 a dead node would be shown as live for as long as the clock went back."""
    dead, alive = Process(client), Process(client)
    dead.clock_ahead = HOUR
    dead.sample("n1", 1, 11)
    dead.sample("n2", 1, 12)
    await dead.round()
    view = dead.table.view("n1")
    assert view is not None
    assert view.is_old(now=EPOCH)
    alive.sample("n2", 1, 77)
    await alive.round()
    assert alive.seen() == {"n2": 77}


async def test_a_clock_that_is_set_forward_empties_no_ring(client: redis.asyncio.Redis) -> None:
    """VIEW-1 what is old is judged by the clock of Redis, not by one that was just set."""
    process = Process(client)
    process.sample("n1", 1, 11)
    await process.round(seconds=0.01)
    key = f"{ring.KEY}{ring.bucket_of('n1')}"
    for _ in range(300):
        await client.xadd(key, {ring.FIELD: b""})
    process.clock_ahead = HOUR
    process.sample("n1", 2, 12)
    await process.round(seconds=0.01)
    assert await client.xlen(key) == 302


async def test_a_defect_of_presence_stops_no_samples(client: redis.asyncio.Redis) -> None:
    """NODE-2 as in an upgrade, while a column is not there yet."""
    process = Process(client)
    process.failure = ProgrammingError("there is no such column")
    process.sample("n1", 1, 11)
    with structlog.testing.capture_logs() as logs:
        await process.round()
    assert [one["event"] for one in logs] == ["presence.failed"]
    assert (await client.hlen(SAMPLES_KEY), await client.hlen(agent_liveness.LISTENERS_KEY)) == (1, 1)
    process.failure = None
    await process.round()
    assert [set(one) for one in process.heard] == [{"n1"}], "it is written with the next round"


async def test_nodes_that_leave_a_full_table_are_forgotten(client: redis.asyncio.Redis) -> None:
    """LEASE-5 and are new when they come again, so that presence is written at once."""
    process = Process(client, most_nodes=2)
    for number in range(5):
        process.sample(f"n{number}", 1, 1)
        await process.round(seconds=0.1)
    heard = len(process.heard)
    process.sample("n0", 2, 1)
    await process.round(seconds=0.1)
    assert len(process.heard) == heard + 1
