"""What agents said last, for a view, which runs in a thread while samples belong to the event loop.

Called by pages and REST.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import redis
import structlog
from asgiref.sync import async_to_sync

from nodes.history import ring
from nodes.live.flush import read_latest
from nodes.live.samples import DETAILS_KEY, SAMPLES_KEY, DetailsView, SampleView, read_details, read_sample

log = structlog.get_logger(__name__)


def latest_for(request: object) -> Mapping[str, SampleView]:
    """Read in the event loop, to which the table belongs, where the server has one: then the request, Django's or DRF's, has an ASGI scope."""
    if not hasattr(request, "scope"):
        return read_latest()
    return async_to_sync(_read)()


def told_of(node: str) -> tuple[SampleView | None, DetailsView | None]:
    """A node's newest sample and details, a second after they came; None where nobody knows, or Redis is away."""
    connection = ring.client()
    try:
        sample = cast("bytes | None", connection.hget(SAMPLES_KEY, node))
        details = cast("bytes | None", connection.hget(DETAILS_KEY, node))
    except (redis.RedisError, OSError) as error:
        log.info("page.node_unread", node=node, why=str(error))
        return None, None
    finally:
        connection.close()
    return read_sample(sample), read_details(details)


async def _read() -> Mapping[str, SampleView]:
    return read_latest()
