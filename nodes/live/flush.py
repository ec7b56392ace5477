"""Exchanges samples between processes through Redis, once a second.

One asyncio task a process, started with the web process, or by the first agent session or reader. Each round writes the
samples since the last one (hash `gpuplane:samples`: node → MessagePack of SampleView; the ring of `nodes.history`) and
details (hash `gpuplane:details`: node → MessagePack of DetailsView), reads other processes' samples while somebody here
reads them, and has `presence` write who was heard. Invariants: with Redis down samples stay in memory and nothing else
fails; both the failure and the recovery are logged once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import uuid4

import msgspec
import structlog
from django.conf import settings

from nodes.history import ring
from nodes.live import agent_liveness
from nodes.live.samples import (
    DETAILS_KEY,
    FORGET_SECONDS,
    SAMPLES_KEY,
    TABLE,
    DetailsView,
    KeptSample,
    LastHeard,
    SampleTable,
    SampleView,
    read_details,
    read_sample,
)
from nodes.live.threads import in_database_thread
from storage.clock import database_now
from storage.redis_client import REDIS_ERRORS, AsyncRedis, Purpose, async_client
from storage.task_end import end_tasks

ROUND_SECONDS: Final = 1.0
NODES_AT_ONCE: Final = 500
"""Nodes a command: redis-py writes it on the event loop, which thousands of nodes would block."""
READERS_SECONDS: Final = 10.0
"""How long other processes' samples are fetched after the last read."""
PRUNE_ROUNDS: Final = 60
OWN_SECONDS: Final = 3.0
"""No other process has a newer sample of a node than a sample of this one that is younger."""
DETAILS_ROUNDS: Final = 60
"""Rounds in which every node's details are written again."""
DETAILS_AT_ONCE: Final = 500
"""Nodes whose details are written in one round: after a restart all arrive at once."""
PRESENCE_SECONDS: Final = 5.0
"""How often presence is written, well below the silence that makes a node suspect; a new node's at once."""

log = structlog.get_logger(__name__)

_encoder = msgspec.msgpack.Encoder()

PresenceWriter = Callable[[Mapping[str, LastHeard]], Awaitable[None]]


class Flusher:
    """Exchanges the samples of one process."""

    def __init__(self, table: SampleTable, client: AsyncRedis, *, write_presence: PresenceWriter) -> None:
        self._table = table
        self._client = client
        self._write_presence = write_presence
        self._process = uuid4().hex
        self._rounds = 0
        self._started: float | None = None
        self._renewed = float("-inf")
        self._redis_clock: tuple[float, float] | None = None
        """(Redis' time, monotonic seconds) of the last round."""
        self._presence_at = float("-inf")
        self._presence_mark = float("-inf")
        self._raw: dict[bytes, tuple[bytes, SampleView]] = {}
        self.redis_down = False
        """Whether the last round could not reach Redis."""
        self._presence_failing = False
        self._present: set[str] = set()
        self.read_until = float("-inf")
        """Monotonic seconds until which other processes' samples are fetched."""

    async def round(self, *, now: float, epoch: float) -> None:
        """Flush, fetch, write presence. `now` monotonic, `epoch` seconds since 1970. Raises no error of Redis."""
        self._rounds += 1
        self._table.forget_silent(now=now)
        self._present.difference_update(self._table.take_dropped())
        self._table.mark_details(part=self._rounds % DETAILS_ROUNDS, parts=DETAILS_ROUNDS)
        await self._write_heard(now)  # first: a Redis that hangs must not make agents look silent
        try:
            await self._flush(now=now, epoch=epoch)
            if now < self.read_until or self._rounds % PRUNE_ROUNDS == 0:
                await self._fetch(epoch=epoch)
        except REDIS_ERRORS as error:
            if not self.redis_down:
                self.redis_down = True
                log.warning("samples.redis_down", why=str(error))
        else:
            if self.redis_down:
                self.redis_down = False
                log.info("samples.redis_back")

    async def _flush(self, *, now: float, epoch: float) -> None:
        """Write changed samples and details. Silent nodes are left to `_fetch`: another process may hear them now."""
        changed, details = self._table.take_changed(), self._table.take_changed_details(most=DETAILS_AT_ONCE)
        try:
            packed, samples = await asyncio.to_thread(_packed, list(changed.values()))
            for key, parts in (
                (SAMPLES_KEY, samples),
                (DETAILS_KEY, [part for item in details.items() for part in item]),
            ):
                for start in range(0, len(parts), 2 * NODES_AT_ONCE):
                    await self._client.hset(key, items=parts[start : start + 2 * NODES_AT_ONCE])
            async with self._client.pipeline(transaction=False) as pipeline:
                if changed:
                    ring.append(pipeline, packed, oldest=self._oldest(now))
                if self._started is None or abs(epoch - self._renewed) > agent_liveness.LISTENER_SECONDS:
                    # other processes took this one for dead meanwhile, or its clock was set back
                    self._started = epoch
                pipeline.hset(
                    agent_liveness.LISTENERS_KEY,
                    self._process,
                    agent_liveness.listener_mark(started=self._started, last=epoch),
                )
                pipeline.time()
                *_, (seconds, micros) = await pipeline.execute()
                self._renewed, self._redis_clock = epoch, (seconds + micros / 1e6, now)
        except BaseException:
            self._table.put_back(changed)
            self._table.put_back_details(details)
            raise

    def _oldest(self, now: float) -> float | None:
        """Time, by the clock of Redis, before which samples leave the ring; None: not known yet.

        This process's wall clock is not asked: one that is set forward would empty the ring for all.
        """
        if self._redis_clock is None:
            return None
        then, read_at = self._redis_clock
        return then + (now - read_at) - ring.KEPT_SECONDS

    async def _fetch(self, *, epoch: float) -> None:
        """Read what other processes flushed, and delete fields that are no longer renewed."""
        own = self._table.own_nodes(epoch=epoch, seconds=OWN_SECONDS)  # of an older one another process may know more
        if await self._client.hlen(SAMPLES_KEY) <= own and self._rounds % PRUNE_ROUNDS:
            self._table.replace_foreign({})
            return
        found: dict[bytes, tuple[bytes, SampleView]] = {}
        stale = []
        async for name, raw in self._client.hscan_iter(SAMPLES_KEY, count=NODES_AT_ONCE):
            before = self._raw.get(name)
            view = before[1] if before is not None and before[0] == raw else read_sample(raw)
            if view is None or view.age_seconds(now=epoch) > FORGET_SECONDS:
                stale.append(name)
            else:
                found[name] = (raw, view)
        self._raw = found
        self._table.replace_foreign({view.node: view for _, view in found.values()})
        if stale:
            await self._client.hdel(SAMPLES_KEY, *stale)
            await self._client.hdel(DETAILS_KEY, *stale)

    async def fetch_node(self, node: str) -> tuple[SampleView | None, DetailsView | None]:
        """One node's newest sample and details in Redis. Raises REDIS_ERRORS."""
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.hget(SAMPLES_KEY, node)
            pipeline.hget(DETAILS_KEY, node)
            sample, details = await pipeline.execute()
        return read_sample(sample), read_details(details)

    async def _write_heard(self, now: float) -> None:
        heard = self._table.heard_since(self._presence_mark, now=now)
        came = heard.keys() - self._present
        if not heard or (not came and now - self._presence_at < PRESENCE_SECONDS):
            return
        self._presence_at = now
        try:
            await self._write_presence(heard)
        except agent_liveness.TEMPORARY as error:
            if not self._presence_failing:
                self._presence_failing = True
                log.warning("presence.database_down", why=str(error))
            return
        except Exception:  # a defect of presence must not stop the exchange of samples; the next round tries again
            log.exception("presence.failed")
            return
        self._presence_failing = False
        self._presence_mark = now
        self._present |= heard.keys()


def _packed(samples: list[KeptSample]) -> tuple[dict[int, bytes], list[str | bytes]]:
    """What `ring.append` takes, and the names and values of the hash, alternating. Takes tens of milliseconds for
    thousands of nodes: for a thread.
    """
    return ring.pack(samples), [part for one in samples for part in (one.view.node, _encoder.encode(one.view))]


class _Running:
    """The flusher of this process."""

    flusher: Flusher | None = None
    task: asyncio.Task[None] | None = None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this process's flusher, to which the samples belong; None while no loop runs one."""
    task = _Running.task
    if task is None or task.done() or not task.get_loop().is_running():
        return None
    return task.get_loop()


def ensure_running() -> None:
    """Start this process's flusher, in the running event loop, unless there is one."""
    if running_loop() is not None:
        return
    loop = asyncio.get_running_loop()
    client = async_client(settings.GPUPLANE_REDIS_URL, Purpose.WORK)
    writer = agent_liveness.Writer()

    async def write_presence(heard: Mapping[str, LastHeard]) -> None:
        await in_database_thread(lambda: writer.write(heard=heard, now=database_now()))

    _Running.flusher = Flusher(TABLE, client, write_presence=write_presence)
    _Running.task = loop.create_task(_run(_Running.flusher, client), name="samples-flush")


async def start() -> None:
    """Start with the web process, so that silence is noticed although no agent connects."""
    ensure_running()


async def stop() -> None:
    """Stop with the web process."""
    task = _Running.task
    if task is None or task.get_loop() is not asyncio.get_running_loop():
        return
    _Running.task = _Running.flusher = None
    await end_tasks(task)


def read_latest() -> Mapping[str, SampleView]:
    """The newest sample of every node by name, from memory.

    Inside an event loop it also has this process fetch other processes' samples, which are about a second older. With
    Redis down only the process's own samples are known.
    """
    _note_reader()
    return TABLE.latest()


def read_latest_kept() -> Mapping[str, KeptSample | SampleView]:
    """As `read_latest`; samples that this process received with their blocks."""
    _note_reader()
    return TABLE.latest_kept()


def _note_reader() -> None:
    if _Running.flusher is not None:  # else a command or a test reads its own table
        _Running.flusher.read_until = time.monotonic() + READERS_SECONDS


async def read_node(node: str, *, epoch: float) -> tuple[SampleView | None, DetailsView | None]:
    """One node's newest sample and details: from memory where its agent is connected here, else from Redis."""
    ensure_running()
    own = TABLE.view(node)
    if own is not None and own.age_seconds(now=epoch) < OWN_SECONDS:
        return own, TABLE.details(node)
    flusher = _Running.flusher
    if flusher is None or running_loop() is not asyncio.get_running_loop():  # its client belongs to its loop
        return own, TABLE.details(node)
    try:
        sample, details = await flusher.fetch_node(node)
    except REDIS_ERRORS:
        return own, TABLE.details(node)  # `round` logs that Redis is down
    newer = own if sample is None or (own is not None and own.received_at > sample.received_at) else sample
    return newer, details or TABLE.details(node)


def redis_is_down() -> bool:
    """Whether this process's last round could not reach Redis; False before the first."""
    return _Running.flusher is not None and _Running.flusher.redis_down


async def _run(flusher: Flusher, client: AsyncRedis) -> None:
    try:
        while True:
            started = time.monotonic()
            try:
                await flusher.round(now=started, epoch=time.time())
            except Exception:  # a defect must not end the live path; the next round tries again
                log.exception("samples.flush_failed")
            await asyncio.sleep(max(0.05, ROUND_SECONDS - (time.monotonic() - started)))
    finally:
        await client.aclose()
