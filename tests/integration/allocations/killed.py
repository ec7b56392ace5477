"""The process of test_kills: filters and binds (or releases) one pod, and kills itself after so many steps.

Run as `python -m tests.integration.allocations.killed DEED STEPS POD-JSON NODE`; DEED is `bind` or `release`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Any

import django


def die(*_: Any, **__: Any) -> None:
    """What `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def bind(pod: dict[str, Any], node: str, steps: int) -> None:
    """Filter; `steps` steps of a bind without reservation pods; death."""
    from allocations.scheduling import binder
    from tests.extender import bound, filtered

    assert filtered(pod, [node]) == node
    taken = [step for step in binder.BIND_STEPS if step not in binder.RESERVATION_STEPS]
    steps_then = (*taken[:steps], binder.Step("death", die))  # type: ignore[arg-type]  # it never returns
    binder.BIND_STEPS = steps_then  # type: ignore[misc,assignment]  # a constant otherwise
    bound(pod, node)


def release(pod: dict[str, Any], steps: int) -> None:
    """Death after the state says releasing (1), or after the leases went as well (2)."""
    from allocations import ledger
    from allocations.backends import current_backends
    from allocations.choices import State
    from allocations.models import Allocation
    from allocations.scheduling.bindings import leases_needed

    allocation = Allocation.objects.get(pod_uid=pod["metadata"]["uid"])
    live = ledger.read_live(allocation.id)
    assert live is not None
    ledger.begin_release(
        allocation_id=allocation.id,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason="test",
        now=datetime.now(UTC),
        actor="test",
    )
    if steps == 2:
        current_backends().leases.drop(leases_needed(live), live.holder.identity)
    die()


if __name__ == "__main__":
    django.setup()
    deed, number, manifest, where = sys.argv[1:]
    if deed == "bind":
        bind(json.loads(manifest), where, int(number))
    else:
        release(json.loads(manifest), int(number))
