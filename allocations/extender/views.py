"""The extender's four doors as functions from body to answer. Thin: decode, one call, encode.

Called by `gpuplane.doors` in a thread with a database connection. Kept true: whatever comes in, the
answer is well formed; a pod is refused by nodes, never by an error or a 500 (DESIGN §4, SCALE-7).
"""

from __future__ import annotations

import orjson
import structlog
from django.db import DatabaseError

from allocations.extender.bind import bind_pod
from allocations.extender.filter import filter_pod
from allocations.extender.preempt import preempt_pod
from allocations.extender.prioritize import prioritize_pod
from allocations.extender.wire import Asked, Unreadable, decode_bind, decode_preempt, unreadable_answer

log = structlog.get_logger(__name__)

LEDGER_AWAY = "the ledger cannot be reached at the moment"


def filter(body: bytes) -> bytes:  # noqa: A001 - the verb's own name
    """POST /extender/filter."""
    try:
        asked = Asked(body)
    except Unreadable as problem:
        return unreadable_answer(body, str(problem))
    try:
        return filter_pod(asked)
    except DatabaseError as error:
        log.exception("extender.filter_without_database", error=str(error))
        return asked.refuse(LEDGER_AWAY)


def prioritize(body: bytes) -> bytes:
    """POST /extender/prioritize."""
    try:
        return prioritize_pod(Asked(body))
    except Unreadable as problem:
        log.warning("extender.prioritize_unreadable", problem=str(problem))
    except DatabaseError as error:
        log.exception("extender.prioritize_without_database", error=str(error))
    return b"[]"


def bind(body: bytes) -> bytes:
    """POST /extender/bind."""
    try:
        args = decode_bind(body)
    except Unreadable as problem:
        return orjson.dumps({"Error": f"the request cannot be read: {problem}"})
    try:
        return orjson.dumps({"Error": bind_pod(args)})
    except DatabaseError as error:
        log.exception("extender.bind_without_database", error=str(error))
        return orjson.dumps({"Error": LEDGER_AWAY})


def preempt(body: bytes) -> bytes:
    """POST /extender/preempt: no nodes where the question cannot be read or answered, so nobody is evicted for nothing."""
    nothing = orjson.dumps({"NodeNameToMetaVictims": {}})
    try:
        return preempt_pod(decode_preempt(body))
    except Unreadable as problem:
        log.warning("extender.preempt_unreadable", problem=str(problem))
    except DatabaseError as error:
        log.exception("extender.preempt_without_database", error=str(error))
    return nothing
