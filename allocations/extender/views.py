"""The extender's four doors as functions from body to answer. Thin: decode, one call, encode.

Called by `gpuplane.doors` in a thread with a database connection. Kept true: whatever comes in, the
answer is well formed; a pod is refused by nodes, never by an error or a 500 (DESIGN §4, SCALE-7).
"""

from __future__ import annotations

import asyncio

import orjson
import structlog
from django.db import DatabaseError

from allocations.extender import counters
from allocations.extender.bind import bind_pod, bind_problem
from allocations.extender.counters import Outcome
from allocations.extender.filter import filter_pod
from allocations.extender.gathering import InThread
from allocations.extender.preempt import preempt_pod
from allocations.extender.prioritize import prioritize_pod
from allocations.extender.together import Binds
from allocations.extender.wire import Asked, Unreadable, decode_bind, decode_preempt, unreadable_answer

log = structlog.get_logger(__name__)

_BOUND = orjson.dumps({"Error": ""})
LEDGER_AWAY = "the ledger cannot be reached at the moment"


def filter(body: bytes) -> bytes:  # noqa: A001 - the verb's own name
    """POST /extender/filter."""
    with counters.FILTER.timed() as timed:
        try:
            asked = Asked(body)
        except Unreadable as problem:
            return unreadable_answer(body, str(problem))
        try:
            answer = filter_pod(asked)
        except DatabaseError as error:
            log.exception("extender.filter_without_database", error=str(error))
            counters.refused([counters.LEDGER_AWAY])
            return asked.refuse(LEDGER_AWAY)
        timed.outcome = Outcome.REFUSED if asked.refused else Outcome.ANSWERED
        return answer


def prioritize(body: bytes) -> bytes:
    """POST /extender/prioritize."""
    with counters.PRIORITIZE.timed() as timed:
        try:
            answer = prioritize_pod(Asked(body))
        except Unreadable as problem:
            log.warning("extender.prioritize_unreadable", problem=str(problem))
        except DatabaseError as error:
            log.exception("extender.prioritize_without_database", error=str(error))
        else:
            timed.outcome = Outcome.ANSWERED
            return answer
        return b"[]"


def bind(body: bytes) -> bytes:
    """POST /extender/bind."""
    with counters.BIND.timed() as timed:
        answer, timed.outcome = _bound_alone(body)
        return answer


def _bound_alone(body: bytes) -> tuple[bytes, Outcome]:
    try:
        args = decode_bind(body)
    except Unreadable as problem:
        return orjson.dumps({"Error": f"the request cannot be read: {problem}"}), Outcome.ERROR
    try:
        error = bind_pod(args)
    except DatabaseError as failed:
        return _without_ledger(failed), Outcome.ERROR
    return orjson.dumps({"Error": error}), Outcome.REFUSED if error else Outcome.ANSWERED


_binds: dict[asyncio.AbstractEventLoop, Binds] = {}


async def bind_together(body: bytes, in_thread: InThread, alone: InThread) -> bytes:
    """POST /extender/bind on the event loop: with others where that is all it takes (`in_thread` for the ledger), else `alone`."""
    binds = _binds_of_this_loop(in_thread)
    with binds.under_way(), counters.BIND.timed() as timed:
        try:
            args = decode_bind(body)
            if not bind_problem(args) and await binds.at_once(args):
                timed.outcome = Outcome.ANSWERED
                return _BOUND
        except Unreadable:
            return _bound_alone(body)[0]
        except DatabaseError as error:
            return _without_ledger(error)
        answer: bytes
        answer, timed.outcome = await alone(_bound_alone, body)
        return answer


def _without_ledger(error: DatabaseError) -> bytes:
    log.error("extender.bind_without_database", exc_info=error)
    return orjson.dumps({"Error": LEDGER_AWAY})


def _binds_of_this_loop(in_thread: InThread) -> Binds:
    loop = asyncio.get_running_loop()
    if loop not in _binds:
        _binds.clear()  # a process has one loop; tests have one after another
        _binds[loop] = Binds(in_thread)
    return _binds[loop]


def preempt(body: bytes) -> bytes:
    """POST /extender/preempt: no nodes where the question cannot be read or answered, so nobody is evicted for nothing."""
    nothing = orjson.dumps({"NodeNameToMetaVictims": {}})
    with counters.PREEMPT.timed() as timed:
        try:
            answer = preempt_pod(decode_preempt(body))
        except Unreadable as problem:
            log.warning("extender.preempt_unreadable", problem=str(problem))
        except DatabaseError as error:
            log.exception("extender.preempt_without_database", error=str(error))
        else:
            timed.outcome = Outcome.REFUSED if answer == nothing else Outcome.ANSWERED
            return answer
        return nothing
