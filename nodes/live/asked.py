"""What agents said last, for a view, which runs in a thread while samples belong to the event loop.

Called by pages and REST.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec
import redis
from asgiref.sync import async_to_sync

from nodes.history.ring import SAMPLES
from nodes.live.flush import DETAILS_KEY, read_latest
from nodes.live.samples import DetailsView, SampleView


def latest_for(request: object) -> Mapping[str, SampleView]:
    """Read in the event loop, to which the table belongs, where the server has one: then the request, Django's or DRF's, has an ASGI scope."""
    if not hasattr(request, "scope"):
        return read_latest()
    return async_to_sync(_read)()


def told_of(connection: redis.Redis, node: str) -> tuple[SampleView | None, DetailsView | None]:
    """A node's newest sample and details, a second after they came; None where nobody knows. Raises redis.RedisError."""
    sample = cast("bytes | None", connection.hget(SAMPLES, node))
    details = cast("bytes | None", connection.hget(DETAILS_KEY, node))
    try:
        return (
            None if sample is None else msgspec.msgpack.decode(sample, type=SampleView),
            None if details is None else msgspec.msgpack.decode(details, type=DetailsView),
        )
    except msgspec.MsgspecError:
        return None, None  # another version's; they will be written again


async def _read() -> Mapping[str, SampleView]:
    return read_latest()
