"""Logs of slots, read live from their runners while somebody looks.

A page or REST asks with `log_text`; the runner's session finds what is asked for with `asked`, and puts the runner's
answers with `put`. Both are keys in Redis that expire. Invariants: a log that nobody looks at is not sent; without
Redis there is none, and nothing else fails; the last lines of a slot that has ended are in `Slot.log_tail`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import structlog
from django.conf import settings

from inference.choices import State
from inference.models import Slot
from inference.wake import RUNNERS
from storage.redis_client import REDIS_ERRORS, AsyncRedis, Purpose, shared_client

ASKED_SECONDS: Final = 15
KEPT_SECONDS: Final = 60
_ASKED: Final = "gpuplane:slot-log-asked:"
_TEXT: Final = "gpuplane:slot-log:"

log = structlog.get_logger(__name__)


def shown_log(slot: Slot) -> str:
    """What a slot wrote last: read live while its process may run, else its last lines."""
    live = None
    if slot.state in (State.STARTING, State.READY, State.DRAINING):
        live = log_text(slot_id=slot.pk, node=slot.node)
    return slot.log_tail if live is None else live


def log_text(*, slot_id: str, node: str) -> str | None:
    """The end of the log of a slot that runs on the node, and keep it coming; None: not there yet, or no Redis."""
    try:
        connection = shared_client(settings.GPUPLANE_REDIS_URL, Purpose.STATUS)
        text = cast("bytes | None", connection.get(_TEXT + slot_id))
        if connection.set(_ASKED + slot_id, b"1", ex=ASKED_SECONDS, get=True) is None:
            connection.publish(RUNNERS.name, node)
    except REDIS_ERRORS as error:
        log.info("slot_log.unread", slot=slot_id, why=str(error))
        return None
    return None if text is None else text.decode("utf-8", "replace")


async def asked(connection: AsyncRedis, slot_ids: Sequence[str]) -> list[str]:
    """Those of the slots whose log somebody looks at."""
    if not slot_ids:
        return []
    try:
        found = await connection.mget([_ASKED + one for one in slot_ids])
    except REDIS_ERRORS as error:
        log.info("slot_log.unasked", why=str(error))
        return []
    return [slot_id for slot_id, value in zip(slot_ids, found, strict=True) if value is not None]


async def put(connection: AsyncRedis, slot_id: str, text: str) -> None:
    """Keep what the runner sent."""
    try:
        await connection.set(_TEXT + slot_id, text.encode(), ex=KEPT_SECONDS)
    except REDIS_ERRORS as error:
        log.info("slot_log.unkept", slot=slot_id, why=str(error))
