"""Carries samples between processes through Redis, at most once a second.

One asyncio task a process, started with the web process, or by the first agent session or reader. Each round it
writes the samples that came since the last (hash `gpuplane:samples`: node → MessagePack of
SampleView; the ring of `nodes.history`; then a notice on the channel `gpuplane:samples`: MessagePack `[process, round, nodes]`,
`round` counting up by one so that a listener sees gaps) and details (hash `gpuplane:details`: node → MessagePack of DetailsView), reads other processes'
samples if anybody here looks at them, and lets `presence` write who was heard. Kept true: with Redis down samples stay
in memory and nothing else suffers; that is logged once, and once more when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import uuid4

import msgspec
import redis.asyncio
import redis.exceptions
import structlog
from django.conf import settings

from nodes.history import ring
from nodes.live import presence
from nodes.live.samples import (
    DETAILS_KEY,
    FORGET_SECONDS,
    SAMPLES_KEY,
    TABLE,
    DetailsView,
    Heard,
    SampleTable,
    SampleView,
    read_details,
    read_sample,
)
from nodes.live.threads import in_database_thread

KEY: Final = SAMPLES_KEY
CHANNEL: Final = "gpuplane:samples"
ROUND_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 2.0
NODES_AT_ONCE: Final = 500
"""In one command: redis-py writes it on the event loop, which must not stand still for thousands of nodes."""
READERS_SECONDS: Final = 10.0
"""Other processes' samples are fetched for so long after somebody last read."""
PRUNE_ROUNDS: Final = 60
OWN_SECONDS: Final = 3.0
"""While a sample that this process received is younger, no other process has a newer one."""
DETAILS_ROUNDS: Final = 60
"""So many rounds until every node's details were written again."""
DETAILS_AT_ONCE: Final = 500
"""Nodes whose details go into one round: after a restart all come at once."""
PRESENCE_SECONDS: Final = 5.0
"""How often presence is written, well below the silence that makes a node suspect; nodes that come at once."""

log = structlog.get_logger(__name__)

_encoder = msgspec.msgpack.Encoder()

PresenceWriter = Callable[[Mapping[str, Heard]], Awaitable[None]]


class Flusher:
    """One process's side of the exchange. `round` is the work of one second."""

    def __init__(self, table: SampleTable, client: redis.asyncio.Redis, *, write_presence: PresenceWriter) -> None:
        self._table = table
        self._client = client
        self._write_presence = write_presence
        self._process = uuid4().hex
        self._rounds = 0
        self._started: float | None = None
        self._renewed = float("-inf")
        self._ahead: float | None = None
        """Seconds by which this process's clock is ahead of that of Redis."""
        self._presence_at = float("-inf")
        self._presence_mark = float("-inf")
        self._raw: dict[bytes, tuple[bytes, SampleView]] = {}
        self._redis_down = False
        self._presence_failing = False
        self._present: set[str] = set()
        self.read_until = float("-inf")
        """Monotonic seconds until which somebody wants other processes' samples."""

    @property
    def redis_down(self) -> bool:
        """Whether the last round could not reach Redis."""
        return self._redis_down

    async def round(self, *, now: float, epoch: float) -> None:
        """Flush, fetch, note presence. `now` monotonic, `epoch` seconds since 1970. Never raises for Redis."""
        self._rounds += 1
        self._present.difference_update(self._table.forget_silent(now=now))
        self._table.mark_details(part=self._rounds % DETAILS_ROUNDS, parts=DETAILS_ROUNDS)
        await self._note_presence(now)  # first: a Redis that hangs must not make agents look silent
        try:
            await self._flush(epoch=epoch)
            if now < self.read_until or self._rounds % PRUNE_ROUNDS == 0:
                await self._fetch(epoch=epoch)
        except (redis.exceptions.RedisError, OSError) as error:
            if not self._redis_down:
                self._redis_down = True
                log.warning("samples.redis_down", why=str(error))
        else:
            if self._redis_down:
                self._redis_down = False
                log.info("samples.redis_back")

    async def _flush(self, *, epoch: float) -> None:
        """Nodes that fell silent are left to `_fetch`, which looks at their age: another process may have their agent now."""
        changed, details = self._table.take_changed(), self._table.take_changed_details(most=DETAILS_AT_ONCE)
        try:
            packed, samples = await asyncio.to_thread(_packed, list(changed.values()))
            for key, parts in ((KEY, samples), (DETAILS_KEY, [part for item in details.items() for part in item])):
                for start in range(0, len(parts), 2 * NODES_AT_ONCE):
                    await self._client.hset(key, items=parts[start : start + 2 * NODES_AT_ONCE])
            async with self._client.pipeline(transaction=False) as pipeline:
                if changed:
                    ring.append(pipeline, packed, oldest=self._oldest(epoch))
                    pipeline.publish(CHANNEL, _encoder.encode([self._process, self._rounds, len(changed)]))
                if self._started is None or epoch - self._renewed > presence.EAR_SECONDS:
                    self._started = epoch  # others took this process for dead meanwhile, so it begins to listen anew
                pipeline.hset(presence.EARS, self._process, presence.ear(started=self._started, last=epoch))
                pipeline.time()
                *_, (seconds, micros) = await pipeline.execute()
                self._renewed, self._ahead = epoch, epoch - (seconds + micros / 1e6)
        except BaseException:
            self._table.put_back(changed)
            self._table.put_back_details(details)
            raise

    def _oldest(self, epoch: float) -> float | None:
        """What is older leaves the ring, by the clock of Redis; None: that is not known yet."""
        return None if self._ahead is None else epoch - self._ahead - ring.KEPT_SECONDS

    async def _fetch(self, *, epoch: float) -> None:
        """Take over what other processes flushed; a field that nobody renews for long is dropped."""
        if await self._client.hlen(KEY) <= self._table.own_nodes() and self._rounds % PRUNE_ROUNDS:
            self._table.replace_foreign({})
            return
        found: dict[bytes, tuple[bytes, SampleView]] = {}
        stale = []
        async for name, raw in self._client.hscan_iter(KEY, count=NODES_AT_ONCE):
            before = self._raw.get(name)
            view = before[1] if before is not None and before[0] == raw else read_sample(raw)
            if view is None or view.age_seconds(now=epoch) > FORGET_SECONDS:
                stale.append(name)
            else:
                found[name] = (raw, view)
        self._raw = found
        self._table.replace_foreign({view.node: view for _, view in found.values()})
        if stale:
            await self._client.hdel(KEY, *stale)
            await self._client.hdel(DETAILS_KEY, *stale)

    async def fetch_node(self, node: str) -> tuple[SampleView | None, DetailsView | None]:
        """One node's newest sample and details, as Redis has them. Raises redis.exceptions.RedisError, OSError."""
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.hget(KEY, node)
            pipeline.hget(DETAILS_KEY, node)
            sample, details = await pipeline.execute()
        return read_sample(sample), read_details(details)

    async def _note_presence(self, now: float) -> None:
        heard = self._table.heard_since(self._presence_mark, now=now)
        came = heard.keys() - self._present
        if not heard or (not came and now - self._presence_at < PRESENCE_SECONDS):
            return
        self._presence_at = now
        try:
            await self._write_presence(heard)
        except presence.TEMPORARY as error:
            if not self._presence_failing:
                self._presence_failing = True
                log.warning("presence.database_down", why=str(error))
            return
        self._presence_failing = False
        self._presence_mark = now
        self._present |= heard.keys()


def _packed(views: list[SampleView]) -> tuple[dict[int, bytes], list[str | bytes]]:
    """What `ring.append` wants of these samples, and names and values in turns for the hash. In a thread: it takes tens of milliseconds for thousands of nodes."""
    return ring.pack(views), [part for view in views for part in (view.node, _encoder.encode(view))]


class _Running:
    """The flusher of this process and the loop it lives in."""

    flusher: Flusher | None = None
    task: asyncio.Task[None] | None = None


def ensure_running() -> None:
    """Start this process's flusher, once an event loop. Call inside a running loop."""
    loop = asyncio.get_running_loop()
    task = _Running.task
    if task is not None and not task.done() and task.get_loop() is loop:
        return
    client = redis.asyncio.Redis.from_url(
        settings.GPUPLANE_REDIS_URL, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
    )
    writer = presence.Writer()

    async def write_presence(heard: Mapping[str, Heard]) -> None:
        await in_database_thread(lambda: writer.write(heard=heard))

    _Running.flusher = Flusher(TABLE, client, write_presence=write_presence)
    _Running.task = loop.create_task(_run(_Running.flusher, client), name="samples-flush")


async def start() -> None:
    """Begin with the web process, so that silence is judged although no agent ever came back."""
    ensure_running()


async def stop() -> None:
    """End with the web process."""
    task, _Running.task = _Running.task, None
    if task is None or task.get_loop() is not asyncio.get_running_loop():
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def read_latest() -> Mapping[str, SampleView]:
    """The newest sample of every node: node name → SampleView. Memory only, never waits.

    Called inside an event loop it also sees to it that this process fetches what other processes
    received, about a second later than they have it. With Redis down only its own samples are known.
    """
    reader_came()
    return TABLE.latest()


async def read_node(node: str) -> tuple[SampleView | None, DetailsView | None]:
    """One node's newest sample and details: from memory where its agent talks to this process, else from Redis; (None, None) where nobody knows."""
    ensure_running()
    own = TABLE.view(node)
    if own is not None and own.age_seconds(now=time.time()) < OWN_SECONDS:
        return own, TABLE.details(node)
    if _Running.flusher is None:
        return own, TABLE.details(node)
    try:
        sample, details = await _Running.flusher.fetch_node(node)
    except (redis.exceptions.RedisError, OSError):
        return own, TABLE.details(node)  # the round says that Redis is down
    newer = own if sample is None or (own is not None and own.received_at > sample.received_at) else sample
    return newer, details or TABLE.details(node)


def reader_came() -> None:
    """Somebody looks at all nodes' samples: fetch other processes' for a while. Does nothing outside a loop."""
    try:
        ensure_running()
    except RuntimeError:  # no running loop: a command or a test reads its own table
        return
    if _Running.flusher is not None:
        _Running.flusher.read_until = time.monotonic() + READERS_SECONDS


def redis_is_down() -> bool:
    """Whether this process's last round could not reach Redis, for pages that say so; False before the first."""
    return _Running.flusher is not None and _Running.flusher.redis_down


async def _run(flusher: Flusher, client: redis.asyncio.Redis) -> None:
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
