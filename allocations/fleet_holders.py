"""Who holds which device of the fleet, for the fleet page's grouping and filter. Called by `gpuplane.pages.fleet`.

Invariants: of an allocation in a namespace that the actor does not see, only that the device is held is shown, as in
`allocations.overviews`. One answer serves all who see the same, for a few seconds: that of a large fleet takes a tenth
of a second of the process that also serves the scheduler.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from access.actors import Actor
from allocations.models import AllocationDevice

KEPT_SECONDS = 5.0
MOST_KEPT = 16


class HolderKey(StrEnum):
    """What devices are grouped by."""

    TEAM = "team"
    """The holder's team, or its namespace where that has none."""
    NAMESPACE = "namespace"
    POD = "pod"
    """`namespace/pod`; the holder's identity where it is no pod."""
    CLAIM = "claim"
    """`namespace/claim`; devices held without one are in no group."""


@dataclass(frozen=True, slots=True)
class FleetHolders:
    """Ids of held devices by the name of their holder. A shared device is with each of its holders."""

    names: dict[str, list[int]] = field(default_factory=dict)
    others: list[int] = field(default_factory=list)
    """Held in namespaces that the actor does not see."""


class HolderCache:
    """Recent answers as JSON, by what the actor sees. `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()

    def of(self, *, actor: Actor, by: HolderKey, team_of: Mapping[str, str]) -> bytes:
        """`fleet_holders` as JSON, at most KEPT_SECONDS old. Threads wait while one of them computes it."""
        seen = (by, actor.namespaces, frozenset(team_of.items()))
        with self._lock:
            made_at, answer = self._answers.get(seen, (float("-inf"), b""))
            if self._clock() - made_at >= KEPT_SECONDS:
                answer = msgspec.json.encode(fleet_holders(actor=actor, by=by, team_of=team_of))
                self._answers[seen] = self._clock(), answer
                self._answers.move_to_end(seen)
                while len(self._answers) > MOST_KEPT:
                    self._answers.popitem(last=False)
            return answer

    def forget(self) -> None:
        """For tests that swap databases."""
        with self._lock:
            self._answers.clear()


ANSWERS = HolderCache()
"""Those of this process."""


def fleet_holders(*, actor: Actor, by: HolderKey, team_of: Mapping[str, str]) -> FleetHolders:
    """Every device held now; `team_of`: namespace → team. One query."""
    named: dict[HolderKey, tuple[Callable[..., str], tuple[str, ...]]] = {
        HolderKey.TEAM: (lambda namespace: team_of.get(namespace, namespace), ()),
        HolderKey.NAMESPACE: (lambda namespace: namespace, ()),
        HolderKey.POD: (
            lambda namespace, pod, holder: f"{namespace}/{pod}" if pod else holder,
            ("allocation__pod_name", "allocation__holder"),
        ),
        HolderKey.CLAIM: (
            lambda namespace, claim: f"{namespace}/{claim}" if claim else "",
            ("allocation__claim_name",),
        ),
    }
    name_of, fields = named[by]
    found = FleetHolders()
    grants = AllocationDevice.objects.filter(live=True, device__isnull=False).order_by("device_id")
    for device, namespace, *more in grants.values_list("device_id", "allocation__namespace", *fields).distinct():
        if actor.sees(namespace):
            name = name_of(namespace, *more)
            if not name:
                continue
            ids = found.names.setdefault(name, [])
        else:
            ids = found.others
        if not ids or ids[-1] != device:
            ids.append(device)
    return found
