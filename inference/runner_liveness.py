"""Runners that are not heard any more (every 5 s).

Called by `inference.tasks`. Invariants: a runner that is silent gets no requests, and nothing is planned there; once it
has failed its slots have failed too, and their requests go elsewhere, but their memory counts until the runner is back
and says that they are gone, or the node is gone. Only time in which a gpuplane process listened for runners counts as
silence, and none from before the database's clock was set forward.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from inference.choices import WANTED, RunnerState, State
from inference.models import Runner, Slot
from inference.transitions import runner_moved, slot_moved
from inference.wake import wake_requests
from storage.transactions import atomic_retry

SILENT: Final = timedelta(seconds=15)
FAILED: Final = timedelta(seconds=60)


def notice_silent(*, now: datetime, listening_since: datetime | None = None) -> dict[RunnerState, list[str]]:
    """Move runners by how long they have been silent; their nodes by the new state.

    `listening_since`: since when every runner had a process to connect to and the clock was not set forward, where
    that is known.
    """
    found: dict[RunnerState, list[str]] = {RunnerState.SILENT: [], RunnerState.FAILED: []}
    rows = Runner.objects.filter(seen_at__lt=now - SILENT).exclude(state=RunnerState.FAILED)
    for runner in rows.select_related("node").order_by("pk"):
        silent = now - (runner.seen_at if listening_since is None else max(runner.seen_at, listening_since))
        if silent >= FAILED:
            moved, state = _failed(runner, now), RunnerState.FAILED
        elif silent >= SILENT and runner.state == RunnerState.CONNECTED:
            moved, state = _silent(runner, now), RunnerState.SILENT
        else:
            continue
        if moved:
            found[state].append(runner.node.name)
    return found


@atomic_retry
def _silent(runner: Runner, now: datetime) -> bool:
    return _unheard(runner) and runner_moved(runner, RunnerState.SILENT, now=now)


@atomic_retry
def _failed(runner: Runner, now: datetime) -> bool:
    why = f"nothing was heard of it for {int((now - runner.seen_at).total_seconds())} s"
    if not _unheard(runner) or not runner_moved(runner, RunnerState.FAILED, now=now, reason=why):
        return False
    for slot in Slot.objects.filter(runner=runner, state__in=WANTED, allocation__isnull=False):
        slot_moved(slot, State.FAILED, now=now, reason=f"the runner of {slot.node} has failed", own_failure=False)
        wake_requests(slot.model_name)
    return True


def _unheard(runner: Runner) -> bool:
    """Whether the runner was not heard since it was read. Its row is locked until the transaction ends."""
    locked = Runner.objects.select_for_update(of=("self",)).filter(pk=runner.pk).values_list("seen_at", flat=True)
    return list(locked) == [runner.seen_at]
