"""The latest samples for views, which run in threads while samples belong to the event loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import cast

import structlog
from asgiref.sync import async_to_sync

from nodes.history import ring
from nodes.live import agent_liveness
from nodes.live.flush import read_latest
from nodes.live.samples import DETAILS_KEY, SAMPLES_KEY, DetailsView, SampleView, read_details, read_sample
from storage.redis_client import REDIS_ERRORS

log = structlog.get_logger(__name__)


def latest_for(request: object) -> Mapping[str, SampleView]:
    """The newest sample of every node, read in the event loop of the server where it has one: then the request has an
    ASGI scope.
    """
    if not hasattr(request, "scope"):
        return read_latest()
    return async_to_sync(_read)()


def latest_of(node: str) -> tuple[SampleView | None, DetailsView | None]:
    """A node's newest sample and details in Redis; None where there are none, or Redis is down."""
    try:
        with ring.client() as connection:
            sample = cast("bytes | None", connection.hget(SAMPLES_KEY, node))
            details = cast("bytes | None", connection.hget(DETAILS_KEY, node))
    except REDIS_ERRORS as error:
        log.info("page.node_unread", node=node, why=str(error))
        return None, None
    return read_sample(sample), read_details(details)


def latest_of_nodes(nodes: Collection[str], *, epoch: float) -> Mapping[str, SampleView]:
    """The newest samples of these nodes in Redis that are not old; none while Redis is down. For workers. `epoch`: now,
    in seconds since 1970.
    """
    if not nodes:
        return {}
    try:
        with ring.client() as connection:
            raw = cast("list[bytes | None]", connection.hmget(SAMPLES_KEY, sorted(nodes)))
    except REDIS_ERRORS as error:
        log.info("samples.unread", why=str(error))
        return {}
    samples = (read_sample(one) for one in raw)
    return {sample.node: sample for sample in samples if sample is not None and not sample.is_old(now=epoch)}


def read_listening_since(*, epoch: float) -> tuple[bool, datetime | None]:
    """Whether any process left a mark that it listens, and since when one does (`presence.listening_since_of`).

    Raises REDIS_ERRORS.
    """
    with ring.client() as connection:
        marks = cast("dict[bytes, bytes]", connection.hgetall(agent_liveness.LISTENERS_KEY))
    return bool(marks), agent_liveness.listening_since_of(marks, epoch=epoch)[0]


async def _read() -> Mapping[str, SampleView]:
    return read_latest()
