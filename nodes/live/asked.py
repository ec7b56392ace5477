"""What agents said last, for a view, which runs in a thread while samples belong to the event loop.

Called by pages and REST.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec
import redis
from asgiref.sync import async_to_sync

from nodes.live.flush import DETAILS_KEY, read_latest
from nodes.live.samples import DetailsView, SampleView


def latest_for(request: object) -> Mapping[str, SampleView]:
    """Read in the event loop, to which the table belongs, where the server has one: then the request, Django's or DRF's, has an ASGI scope."""
    if not hasattr(request, "scope"):
        return read_latest()
    return async_to_sync(_read)()


def details_for(connection: redis.Redis, node: str) -> DetailsView | None:
    """What a node's agent said last of links and processes, a second after it did; None where nobody knows. Raises redis.RedisError."""
    raw = cast("bytes | None", connection.hget(DETAILS_KEY, node))
    try:
        return None if raw is None else msgspec.msgpack.decode(raw, type=DetailsView)
    except msgspec.MsgspecError:
        return None  # another version's; it will be written again


async def _read() -> Mapping[str, SampleView]:
    return read_latest()
