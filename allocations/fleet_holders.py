"""Who holds which device of the fleet, for the fleet page's grouping and filter. Called by `allocations.views.nodes`.

Kept true: the rule of the hover card (`allocations.overviews`): of an allocation in a namespace that the actor does not see it is
told that the device is taken, never by whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from access.actors import Actor
from allocations.models import AllocationDevice


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
