"""The order in which devices of one node are taken.

Used by `engine.choice` and `engine.pcie_affinity`. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from claims.dialects.request import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.needs import Need
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest


class DeviceRanking:
    """Orders the devices of one node for one request, the first choice first."""

    def __init__(self, snapshot: Snapshot, request: DeviceRequest, node: int) -> None:
        self.snapshot = snapshot
        self.request = request
        self.node = node

    def fullness(self, row: int) -> tuple[float, float, bool]:
        """The sort key of a share's device: the fullest first (by memory, then core), or the emptiest.

        Of those that nobody has, one that a reservation pod keeps warm comes before one that needs a new pod.
        """
        sign = 1.0 if self.request.to_emptiest else -1.0
        memory = int(self.snapshot.memory_used[row]) / max(int(self.snapshot.memory_total[row]), 1)
        return sign * memory, sign * int(self.snapshot.core_used[row]), not self.snapshot.device_group[row]

    def ranked(self, need: Need) -> list[int]:
        """The rows that can serve: whole devices by minor, shares by fullness."""
        rows = need.rows(self.node)
        return rows if need.ask.whole else sorted(rows, key=self.fullness)

    def gpu_shares(self, need: Need) -> list[int]:
        """The fullest devices that fit, or the emptiest; `contiguous`: those of one island where one has enough."""
        count = need.ask.count
        rows = self.ranked(need)
        if need.at_one_numa:
            groups = [group[:count] for group in need.numas(rows) if len(group) >= count]
            return min(groups, key=lambda group: [self.fullness(row) for row in group])
        if self.request.policy is Policy.CONTIGUOUS and count > 1:
            islands: dict[int, list[int]] = {}
            for row in rows:
                islands.setdefault(int(self.snapshot.device_island[row]), []).append(row)
            groups = [island[:count] for island in islands.values() if len(island) >= count]
            rows = min(groups, key=lambda group: ([self.fullness(row) for row in group], group), default=rows)
        return rows[:count]

    def others(self, need: Need, *, beside: Sequence[int], same_switch_first: bool = False) -> list[int]:
        """The rows of another type that can serve: whole devices by distance to the GPUs `beside`, shares by fullness.

        `same_switch_first`: those under the same switches as the GPUs before all others.
        """
        pcie, numa = self.snapshot.device_pcie, self.snapshot.device_numa
        switches, numas = ({int(column[row]) for row in beside} - {-1} for column in (pcie, numa))

        def key(row: int) -> tuple[bool, tuple[float, float, bool], int]:
            same_switch = int(pcie[row]) in switches
            distance = 0 if same_switch else 1 if int(numa[row]) in numas else 2
            fullness = (0.0, 0.0, True) if need.ask.whole else self.fullness(row)
            return same_switch_first and not same_switch, fullness, distance

        return sorted(need.rows(self.node), key=key)
