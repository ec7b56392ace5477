"""The latest samples for views, which run in threads while samples belong to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, cast

import structlog

from access.errors import Unavailable
from nodes.history import ring
from nodes.live import agent_liveness, flush
from nodes.live.flush import read_latest
from nodes.live.samples import DETAILS_KEY, SAMPLES_KEY, DetailsView, SampleView, read_details, read_sample
from storage.redis_client import REDIS_ERRORS

LOOP_SECONDS: Final = 10.0
"""The loop that owns the samples also serves requests: it never takes so long while its process lives."""

log = structlog.get_logger(__name__)


def latest_samples() -> Mapping[str, SampleView]:
    """The newest sample of every node. For threads: read in the event loop that owns the samples, where one runs.

    Raises Unavailable when that loop does not answer within `LOOP_SECONDS`.
    """
    loop = flush.running_loop()
    if loop is None:
        return read_latest()
    reading = asyncio.run_coroutine_threadsafe(_read(), loop)
    try:
        return reading.result(LOOP_SECONDS)
    except TimeoutError as error:
        reading.cancel()
        raise Unavailable("what the agents measure cannot be read at the moment") from error


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
