"""The plan of growth: how many empty nodes of which pools would serve the workloads that wait for devices.

Called by `allocations.scenario` (keys `pools`) and by `autoscaling`. Pure. `grow` is the entry; rules: docs/scaling.md.
"""

from allocations.engine.growth.plan import grow
from allocations.engine.growth.records import ComingNode, Demand, Growth, GrowthInput, GrowthNode, Need, Pool

__all__ = ["ComingNode", "Demand", "Growth", "GrowthInput", "GrowthNode", "Need", "Pool", "grow"]
