"""Which team holds which device, for the fleet page's grouping and filter by team. Called by `allocations.views.nodes`.

Kept true: the rule of the hover card (`allocations.overviews`): of an allocation in a namespace that the actor does not see it is
told that the device is taken, never by whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from access.actors import Actor
from allocations.models import AllocationDevice


@dataclass(frozen=True, slots=True)
class TeamHoldings:
    """Ids of devices that are held. A device shared by several is with each of them."""

    teams: dict[str, list[int]] = field(default_factory=dict)
    """By the holder's team, or its namespace where that has none."""
    others: list[int] = field(default_factory=list)
    """Held by somebody in a namespace that the actor does not see."""


def team_holdings(*, actor: Actor, team_of: Mapping[str, str]) -> TeamHoldings:
    """Every device held now; `team_of`: namespace → team. One query."""
    found = TeamHoldings()
    grants = AllocationDevice.objects.filter(live=True, device__isnull=False).order_by("device_id")
    for device, namespace in grants.values_list("device_id", "allocation__namespace").distinct():
        ids = found.teams.setdefault(team_of.get(namespace, namespace), []) if actor.sees(namespace) else found.others
        if not ids or ids[-1] != device:
            ids.append(device)
    return found
