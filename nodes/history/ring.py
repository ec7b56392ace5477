"""The last KEPT_SECONDS of every node's samples, in Redis streams.

Written by `nodes.live.flush` once a second, read by `rollups` (all nodes) and `series` (one). Nodes share BUCKETS
streams by a hash of their names: a second costs a hundred commands instead of thousands, and a node is read without
reading all. Invariants: samples older than KEPT_SECONDS are trimmed; without a writer all expire after twice that.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec
import structlog
from django.conf import settings

from agent.protocol import COLUMNS, Values
from nodes.live.samples import SAMPLES_KEY, SampleView, read_sample
from storage import redis_client
from storage.redis_client import Purpose, Redis

KEY: Final = "gpuplane:ring:"
FIELD: Final = b"m"
BUCKETS: Final = 128
KEPT_SECONDS: Final = 180
SLACK_SECONDS: Final = 5
"""Streams are ordered by the clock of Redis, samples by that of their receivers."""
LARGEST_BUCKET: Final = 64 * 2**20
"""Bytes of one second of a bucket, unpacked."""

log = structlog.get_logger(__name__)


class Moment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One node's sample. `order`: checksum of the devices' UUIDs; `columns` as in `agent.protocol.COLUMNS`."""

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
    """Bucket → packed samples. Takes milliseconds for thousands of nodes: for a thread."""
    buckets: dict[int, list[Moment]] = {}
    for view in views:
        moment = Moment(view.node, view.order, view.received_at, tuple([getattr(view, name) for name in COLUMNS]))
        buckets.setdefault(bucket_of(view.node), []).append(moment)
    return {bucket: zlib.compress(_encoder.encode(moments), 1) for bucket, moments in buckets.items()}


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


def read_bucket(connection: Redis, bucket: int, *, since: float, until: float) -> Iterator[Moment]:
    """Samples of a bucket's nodes received in [since, until), seconds since 1970, the oldest first."""
    low, high = int((since - SLACK_SECONDS) * 1000), int((until + SLACK_SECONDS) * 1000)
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", connection.xrange(f"{KEY}{bucket}", min=low, max=high))
    for _, fields in entries:
        for moment in _moments(fields.get(FIELD, b"")):
            if since <= moment.received_at < until and len(moment.columns) == len(COLUMNS):  # else another version
                yield moment


def read_node(connection: Redis, node: str, *, since: float, until: float) -> list[Moment]:
    """Samples of one node, the oldest first."""
    found = read_bucket(connection, bucket_of(node), since=since, until=until)
    return sorted((one for one in found if one.node == node), key=lambda one: one.received_at)


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


def _moments(packed: bytes) -> list[Moment]:
    """Unpack samples; none of another version's format."""
    try:
        unpacker = zlib.decompressobj()
        return _decoder.decode(unpacker.decompress(packed, LARGEST_BUCKET))
    except (zlib.error, msgspec.MsgspecError) as error:
        log.info("ring.unreadable", why=str(error))
        return []
