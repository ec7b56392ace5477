"""The last KEPT_SECONDS of every node's samples, in Redis streams.

Written by `nodes.live.flush` once a second, read by `rollups` (all nodes) and `series` (one). Nodes share BUCKETS
streams by a hash of their names: a second costs a hundred commands instead of thousands, and a node is read without
reading all. An entry is a `ring_seconds.Second`, compressed. Invariants: samples older than KEPT_SECONDS are trimmed;
without a writer all expire after twice that.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, cast

import structlog
from django.conf import settings

from nodes.history.ring_seconds import Moment, Second, Unreadable, moments_of, planes_of, second_of
from nodes.live.samples import SAMPLES_KEY, KeptSample, SampleView, read_sample
from nodes.measures import measures_of
from storage import redis_client
from storage.redis_client import Purpose, Redis

__all__ = ["Moment"]

KEY: Final = "gpuplane:ring:"
FIELD: Final = b"m"
BUCKETS: Final = 128
KEPT_SECONDS: Final = 180
SLACK_SECONDS: Final = 5
"""Streams are ordered by the clock of Redis, samples by that of their receivers."""

log = structlog.get_logger(__name__)


def bucket_of(node: str) -> int:
    """The stream of a node: 0..BUCKETS-1."""
    return zlib.crc32(node.encode()) % BUCKETS


def pack(samples: Iterable[KeptSample | SampleView]) -> dict[int, bytes]:
    """Bucket → packed samples. Takes milliseconds for thousands of nodes, most of them without the interpreter's lock:
    for a thread.
    """
    ordered = sorted(
        ((bucket_of(one.view.node), one) for one in map(KeptSample.of, samples)), key=lambda entry: entry[0]
    )
    gpus = [len(one.view.devices) for _, one in ordered]
    planes = planes_of(measures_of([one.block for _, one in ordered], gpus))
    packed, first = {}, 0
    for bucket, entries in groupby(ordered, key=lambda entry: entry[0]):
        views = [one.view for _, one in entries]
        end = first + sum(len(view.devices) for view in views)
        packed[bucket] = Second.of(views, planes[:, first:end]).packed()
        first = end
    return packed


def append(pipeline: Any, packed: Mapping[int, bytes], *, oldest: float | None) -> None:
    """Append packed samples, and trim those before `oldest` (seconds since 1970 by the clock of Redis).

    `pipeline`: of a Redis client, asynchronous or not.
    """
    least = None if oldest is None else int(oldest * 1000)
    for bucket, body in packed.items():
        pipeline.xadd(f"{KEY}{bucket}", {FIELD: body}, minid=least, approximate=least is not None)
        pipeline.expire(f"{KEY}{bucket}", 2 * KEPT_SECONDS)


def client() -> Redis:
    """A client to read with; close it."""
    return redis_client.client(settings.GPUPLANE_REDIS_URL, Purpose.BULK)


def read_bucket(connection: Redis, bucket: int, *, since: float, until: float) -> list[Second]:
    """The seconds of a bucket with all samples received in [since, until), seconds since 1970, and some beside them;
    the oldest first.
    """
    low, high = int((since - SLACK_SECONDS) * 1000), int((until + SLACK_SECONDS) * 1000)
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", connection.xrange(f"{KEY}{bucket}", min=low, max=high))
    found = []
    for _, fields in entries:
        try:
            found.append(second_of(fields.get(FIELD, b"")))
        except Unreadable as error:  # another version's
            log.info("ring.unreadable", why=str(error))
    return found


def read_node(connection: Redis, node: str, *, since: float, until: float) -> list[Moment]:
    """Samples of one node received in [since, until), the oldest first."""
    seconds = read_bucket(connection, bucket_of(node), since=since, until=until)
    found = [moment for second in seconds for moment in moments_of(second, node)]
    return sorted((one for one in found if since <= one.received_at < until), key=lambda one: one.received_at)


def order_of(connection: Redis, node: str) -> tuple[int, tuple[str, ...]]:
    """(`Moment.order`, UUIDs) of the node's newest sample; (0, ()) without one."""
    return _order(cast("bytes | None", connection.hget(SAMPLES_KEY, node)))


def orders_of_all(connection: Redis) -> dict[str, tuple[int, tuple[str, ...]]]:
    """`order_of` of every node."""
    found = cast("dict[bytes, bytes]", connection.hgetall(SAMPLES_KEY))
    return {name.decode(): order for name, raw in found.items() if (order := _order(raw))[1]}


def _order(raw: bytes | None) -> tuple[int, tuple[str, ...]]:
    view = read_sample(raw)
    return (0, ()) if view is None else (view.order, view.devices)
