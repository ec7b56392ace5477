"""The last seconds of every node, in Redis: a ring of samples that needs no database.

Written by `nodes.live.flush` once a second, read by `rollups` (every node) and `series` (one). Nodes share BUCKETS streams by a hash of their name, so that a
second costs a hundred commands instead of thousands, and one node is read without reading all. Kept true: what is older than
KEPT_SECONDS goes; with nobody writing, all of it after twice that.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec
import redis
import structlog
from django.conf import settings

from agent.protocol import COLUMNS, Values
from nodes.live.samples import SAMPLES_KEY, SampleView, read_sample

KEY: Final = "gpuplane:ring:"
FIELD: Final = b"m"
BUCKETS: Final = 128
KEPT_SECONDS: Final = 180
SLACK_SECONDS: Final = 5
"""Streams are ordered by the clock of Redis, samples by that of the process that received them."""
READ_SECONDS: Final = 5.0
LARGEST_BUCKET: Final = 64 * 2**20
"""Bytes that one second of a bucket may have, unpacked."""

log = structlog.get_logger(__name__)


class Moment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One node's sample in the ring. `order`: mark of the devices' UUIDs and their order; `columns` as `agent.protocol.COLUMNS`."""

    node: str
    order: int
    received_at: float
    columns: tuple[Values, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Moment]] = msgspec.msgpack.Decoder(list[Moment])


def bucket_of(node: str) -> int:
    """The stream of a node: 0..BUCKETS-1."""
    return zlib.crc32(node.encode()) % BUCKETS


def pack(views: Iterable[SampleView]) -> dict[int, bytes]:
    """Bucket → what to append of these samples. Takes milliseconds for thousands of nodes: for a thread."""
    buckets: dict[int, list[Moment]] = {}
    for view in views:
        moment = Moment(view.node, view.order, view.received_at, tuple([getattr(view, name) for name in COLUMNS]))
        buckets.setdefault(bucket_of(view.node), []).append(moment)
    return {bucket: zlib.compress(_encoder.encode(moments), 1) for bucket, moments in buckets.items()}


def append(pipeline: Any, packed: Mapping[int, bytes], *, oldest: float | None) -> None:
    """Add what `pack` made. `pipeline`: of a Redis client, asynchronous or not; `oldest`: what is older goes, seconds since 1970 by Redis' clock."""
    least = None if oldest is None else int(oldest * 1000)
    for bucket, body in packed.items():
        pipeline.xadd(f"{KEY}{bucket}", {FIELD: body}, minid=least, approximate=least is not None)
        pipeline.expire(f"{KEY}{bucket}", 2 * KEPT_SECONDS)


def client() -> redis.Redis:
    """A connection to read with; close it."""
    return redis.Redis.from_url(
        settings.GPUPLANE_REDIS_URL, socket_timeout=READ_SECONDS, socket_connect_timeout=READ_SECONDS
    )


def read_bucket(connection: redis.Redis, bucket: int, *, since: float, until: float) -> Iterator[Moment]:
    """Samples of a bucket's nodes received in [since, until), seconds since 1970, the oldest first."""
    low, high = int((since - SLACK_SECONDS) * 1000), int((until + SLACK_SECONDS) * 1000)
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", connection.xrange(f"{KEY}{bucket}", min=low, max=high))
    for _, fields in entries:
        for moment in _moments(fields.get(FIELD, b"")):
            if since <= moment.received_at < until and len(moment.columns) == len(COLUMNS):  # else another version's
                yield moment


def read_node(connection: redis.Redis, node: str, *, since: float, until: float) -> list[Moment]:
    """Samples of one node, the oldest first."""
    found = read_bucket(connection, bucket_of(node), since=since, until=until)
    return sorted((one for one in found if one.node == node), key=lambda one: one.received_at)


def order_of(connection: redis.Redis, node: str) -> tuple[int, tuple[str, ...]]:
    """(mark, UUIDs) of the node's newest sample: what moments with that mark list. (0, ()) where there is none."""
    return _order(cast("bytes | None", connection.hget(SAMPLES_KEY, node)))


def orders_of_all(connection: redis.Redis) -> dict[str, tuple[int, tuple[str, ...]]]:
    """`order_of` of every node."""
    found = cast("dict[bytes, bytes]", connection.hgetall(SAMPLES_KEY))
    return {name.decode(): order for name, raw in found.items() if (order := _order(raw))[1]}


def _order(raw: bytes | None) -> tuple[int, tuple[str, ...]]:
    view = read_sample(raw)
    return (0, ()) if view is None else (view.order, view.devices)


def _moments(packed: bytes) -> list[Moment]:
    """Nothing where another version wrote it."""
    try:
        unpacker = zlib.decompressobj()
        return _decoder.decode(unpacker.decompress(packed, LARGEST_BUCKET))
    except (zlib.error, msgspec.MsgspecError) as error:
        log.info("ring.unreadable", why=str(error))
        return []
