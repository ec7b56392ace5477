"""Who holds which device of the fleet, for the fleet page's grouping and filter. Called by `allocations.views.nodes`.

Kept true: the rule of the hover card (`allocations.overviews`): of an allocation in a namespace that the actor does not see it is
told that the device is taken, never by whom. An answer is made once for all who see the same, and is a few seconds old at most: a
large fleet's takes a tenth of a second of the process that answers the scheduler, too.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from access.actors import Actor
from allocations.models import AllocationDevice

KEPT_SECONDS = 5.0
MOST_KEPT = 16


class By(StrEnum):
    """What holders are named by."""

    TEAM = "team"
    """The holder's team, or its namespace where that has none."""
    NAMESPACE = "namespace"
    POD = "pod"
    """`namespace/pod`; the holder as it named itself where it is no pod."""
    CLAIM = "claim"
    """`namespace/claim`; who holds without one is in none."""


@dataclass(frozen=True, slots=True)
class FleetHolders:
    """Ids of devices that are held. A device shared by several is with each of them."""

    names: dict[str, list[int]] = field(default_factory=dict)
    others: list[int] = field(default_factory=list)
    """Held by somebody in a namespace that the actor does not see."""


_FIELDS: Final[dict[By, tuple[str, ...]]] = {
    By.TEAM: (),
    By.NAMESPACE: (),
    By.POD: ("allocation__pod_name", "allocation__holder"),
    By.CLAIM: ("allocation__claim_name",),
}


class Answers:
    """What was told lately, as JSON, by who sees how much. `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()

    def of(self, *, actor: Actor, by: By, team_of: Mapping[str, str]) -> bytes:
        """`fleet_holders` as JSON, of now or of the last KEPT_SECONDS. Who asks while it is made waits for that."""
        seen = (by, actor.namespaces, frozenset(team_of.items()))
        with self._lock:
            made_at, answer = self._told.get(seen, (float("-inf"), b""))
            if self._clock() - made_at >= KEPT_SECONDS:
                answer = msgspec.json.encode(fleet_holders(actor=actor, by=by, team_of=team_of))
                self._told[seen] = self._clock(), answer
                self._told.move_to_end(seen)
                while len(self._told) > MOST_KEPT:
                    self._told.popitem(last=False)
            return answer

    def forget(self) -> None:
        """For tests that swap databases."""
        with self._lock:
            self._told.clear()


ANSWERS = Answers()
"""Those of this process."""


def fleet_holders(*, actor: Actor, by: By, team_of: Mapping[str, str]) -> FleetHolders:
    """Every device held now; `team_of`: namespace → team. One query."""
    names: dict[By, Callable[..., str]] = {
        By.TEAM: lambda namespace: team_of.get(namespace, namespace),
        By.NAMESPACE: lambda namespace: namespace,
        By.POD: lambda namespace, pod, holder: f"{namespace}/{pod}" if pod else holder,
        By.CLAIM: lambda namespace, claim: f"{namespace}/{claim}" if claim else "",
    }
    name_of = names[by]
    found = FleetHolders()
    grants = AllocationDevice.objects.filter(live=True, device__isnull=False).order_by("device_id")
    for device, namespace, *more in grants.values_list("device_id", "allocation__namespace", *_FIELDS[by]).distinct():
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
