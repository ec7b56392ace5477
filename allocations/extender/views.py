"""The extender's verbs as functions from body to answer: decode, one call, encode.

Called by `gpuplane.listeners` in a thread with a database connection. Invariants: whatever comes in, the answer is well
formed; a pod is refused by nodes, never by an error or a 500 (SCALE-7).
"""

from __future__ import annotations

import asyncio

import orjson
import structlog
from django.db import DatabaseError

from allocations.extender import counters
from allocations.extender.bind import bind_pod, bind_problem
from allocations.extender.bind_on_loop import Binds
from allocations.extender.counters import VerbOutcome
from allocations.extender.filter import filter_pod
from allocations.extender.filter_result import refused
from allocations.extender.preempt import preempt_pod
from allocations.extender.prioritize import prioritize_pod
from allocations.extender.reasons import LEDGER_AWAY
from allocations.extender.wire import FilterRequest, Unreadable, decode_bind, decode_preempt, unreadable_answer
from allocations.scheduling.binder import InThread

log = structlog.get_logger(__name__)


def filter(body: bytes) -> bytes:  # noqa: A001 - the verb's own name
    """POST /extender/filter."""
    with counters.FILTER.timed() as timed:
        try:
            request = FilterRequest(body)
        except Unreadable as problem:
            return unreadable_answer(body, str(problem))
        try:
            result = filter_pod(request)
        except DatabaseError as error:
            log.exception("extender.filter_without_database", error=str(error))
            result = refused(request.names, LEDGER_AWAY)
        else:
            refusal = request.names and not result.passed
            timed.outcome = VerbOutcome.REFUSED if refusal else VerbOutcome.ANSWERED
        counters.refused(result.kinds)
        return request.answer(result.passed, result.failed, result.unresolvable)


def prioritize(body: bytes) -> bytes:
    """POST /extender/prioritize."""
    with counters.PRIORITIZE.timed() as timed:
        try:
            answer = prioritize_pod(FilterRequest(body))
        except Unreadable as problem:
            log.warning("extender.prioritize_unreadable", problem=str(problem))
        except DatabaseError as error:
            log.exception("extender.prioritize_without_database", error=str(error))
        else:
            timed.outcome = VerbOutcome.ANSWERED
            return answer
        return b"[]"


def bind(body: bytes) -> bytes:
    """POST /extender/bind."""
    with counters.BIND.timed() as timed:
        answer, timed.outcome = _bind(body)
        return answer


_binds: dict[asyncio.AbstractEventLoop, Binds] = {}


async def bind_on_loop(body: bytes, in_thread: InThread, alone: InThread) -> bytes:
    """POST /extender/bind on the event loop (`in_thread` for the ledger), or where that is not enough in a thread
    (`alone`).
    """
    binds = _binds_of_this_loop(in_thread)
    with binds.under_way(), counters.BIND.timed() as timed:
        error: str | None = None
        try:
            args = decode_bind(body)
            if not bind_problem(args):
                error = await binds.bind(args)
        except Unreadable:
            return _bind(body)[0]
        except DatabaseError as failed:
            return _without_ledger(failed)
        answer: bytes
        answer, timed.outcome = await alone(_bind, body) if error is None else _answer(error)
        return answer


def _binds_of_this_loop(in_thread: InThread) -> Binds:
    loop = asyncio.get_running_loop()
    if loop not in _binds:
        _binds.clear()  # a process has one loop; tests have one after another
        _binds[loop] = Binds(in_thread)
    return _binds[loop]


def _bind(body: bytes) -> tuple[bytes, VerbOutcome]:
    try:
        return _answer(bind_pod(decode_bind(body)))
    except Unreadable as problem:
        return orjson.dumps({"Error": f"the request cannot be read: {problem}"}), VerbOutcome.ERROR
    except DatabaseError as failed:
        return _without_ledger(failed), VerbOutcome.ERROR


def _answer(error: str) -> tuple[bytes, VerbOutcome]:
    return orjson.dumps({"Error": error}), VerbOutcome.REFUSED if error else VerbOutcome.ANSWERED


def _without_ledger(error: DatabaseError) -> bytes:
    log.error("extender.bind_without_database", exc_info=error)
    return orjson.dumps({"Error": LEDGER_AWAY.text})


def preempt(body: bytes) -> bytes:
    """POST /extender/preempt. What cannot be read or answered names no nodes, so nobody is evicted for nothing."""
    nothing = orjson.dumps({"NodeNameToMetaVictims": {}})
    with counters.PREEMPT.timed() as timed:
        try:
            answer = preempt_pod(decode_preempt(body))
        except Unreadable as problem:
            log.warning("extender.preempt_unreadable", problem=str(problem))
        except DatabaseError as error:
            log.exception("extender.preempt_without_database", error=str(error))
        else:
            timed.outcome = VerbOutcome.REFUSED if answer == nothing else VerbOutcome.ANSWERED
            return answer
        return nothing
