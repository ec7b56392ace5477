"""The steps of a release: begin → leases → end.

Called by `binder`, to undo a bind that failed and to release what is bound. Invariants: devices count as used until
their leases are gone; a reservation that another attempt has taken up is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from allocations import ledger
from allocations.choices import State
from allocations.leases.kubernetes import KubernetesLeases
from allocations.scheduling.attempt import DONE, Attempt, FinalState, StepOutcome, StepResult
from kube.errors import KubeError

log = structlog.get_logger(__name__)

LEFT = StepOutcome(StepResult.OPEN)
"""Somebody else moved it on, or the API server is away and garbage collection goes on."""


def begin(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Reserved or bound → releasing."""
    outcomes = []
    for one in attempts:
        ending = _ending(one)
        begun = ledger.begin_release(
            allocation_id=one.live.id,
            sources=one.sources,
            outcome=ending.state,
            reason=ending.reason,
            now=one.now,
            actor=one.actor,
            bind_attempt=one.live.bind_attempt if State.RESERVED in one.sources else None,
        )
        outcomes.append(DONE if begun else LEFT)
    return outcomes


def drop_rows(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Drop the leases, without Kubernetes."""
    for one in attempts:
        one.backends.leases.drop(one.wants, one.live.holder.identity)
    return [DONE] * len(attempts)


async def drop(attempt: Attempt) -> StepOutcome:
    """Drop the Leases."""
    leases = attempt.backends.leases
    assert isinstance(leases, KubernetesLeases)
    try:
        await leases.adrop(attempt.wants, attempt.live.holder.identity)
    except KubeError as error:
        log.warning("release.leases_left", allocation=str(attempt.live.id), error=str(error))
        return LEFT
    return DONE


def finish(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Releasing → ended: the devices are back."""
    return [
        DONE
        if ledger.finish_release(allocation_id=one.live.id, outcome=_ending(one).state, now=one.now, actor=one.actor)
        else LEFT
        for one in attempts
    ]


def _ending(attempt: Attempt) -> FinalState:
    assert attempt.ending is not None, "an attempt that ends says how"
    return attempt.ending
