"""The input of the plan of growth, and its decision, as values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from allocations.engine.build import NodeRow
from allocations.engine.queueing.placing import Labels
from allocations.engine.queueing.workloads import Member, Topology
from allocations.engine.snapshot import Snapshot


class Pool(msgspec.Struct, frozen=True):
    """A pool whose nodes may be made. `node`: one of them, empty; `most`: how many may still be made, None: any number.

    `labels`: those that every node of the pool has.
    """

    name: str
    node: NodeRow
    weight: int = 0
    most: int | None = None
    labels: Mapping[str, str] = {}


class ComingNode(msgspec.Struct, frozen=True):
    """A node that is being made, as an empty one of its pool. `pool`: its place among the pools.

    `ours`: made for a trigger pod; other nodes Karpenter makes for pods that it sees by itself.
    """

    name: str
    pool: int
    ours: bool = True


class Need(msgspec.Struct, frozen=True):
    """A waiting pod. `refused`: place of a pool → why the pod's own rules exclude its nodes.

    `by_itself`: Karpenter makes a node for this pod without a trigger pod, so it opens none.
    """

    member: Member
    refused: Mapping[int, str] = {}
    by_itself: bool = False


class Demand(msgspec.Struct, frozen=True):
    """Waiting pods that go together: a gang's, or one pod. `name`: of the gang, or of the pod.

    `beside`: node rows of members that run already. `above`: the gang of a pod above its `minMember`, which is served
    only if the gang stands.
    """

    name: str
    needs: tuple[Need, ...]
    topology: Topology | None = None
    beside: tuple[int, ...] = ()
    above: str = ""


class GrowthInput(msgspec.Struct, frozen=True):
    """The input. `labels` by node row; `coming`: the nodes to fill first come first."""

    snapshot: Snapshot
    labels: Labels
    pools: tuple[Pool, ...]
    demands: tuple[Demand, ...]
    coming: tuple[ComingNode, ...] = ()


class GrowthNode(msgspec.Struct, frozen=True):
    """A node that is coming (`coming`: its name) or to be made (empty), its pods by age, and the GPUs that they use."""

    pool: int
    coming: str
    pods: tuple[str, ...]
    gpus: int


class Growth(msgspec.Struct, frozen=True):
    """The answer.

    `nodes`: those coming, as they were given, then those to be made, in the order of pools and of opening. `pool_of`:
    pod → place of the pool that serves it, every member of a gang that needs a node of one included. `on_fleet`: pod →
    the node there that has room for it. `reasons`: pod → why no node would help.
    """

    nodes: tuple[GrowthNode, ...]
    pool_of: dict[str, int]
    on_fleet: dict[str, str]
    reasons: dict[str, str]

    @property
    def new(self) -> tuple[GrowthNode, ...]:
        """The nodes to be made."""
        return tuple(node for node in self.nodes if not node.coming)
