"""NodePools of the simulated cluster, and the instances that its cloud has.

The spot pool is preferred and often has no capacity, so that growth fails over to the other one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kube.keys import NATIVE_GPU, NODEPOOL_LABEL
from simulator.cluster.kinds import Object
from simulator.fleet import B200, GPUS_A_NODE, L4, MachineKind

INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"
CAPACITY_LABEL: Final = "karpenter.sh/capacity-type"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
EMPTY_FOR: Final = 12
"""Seconds that a node is empty for before it is taken away."""


class Instance(msgspec.Struct, frozen=True):
    """What a NodePool makes. Times in seconds, the shortest and the longest.

    `launch`: NodeClaim → Launched; `register`: → the node is there; `ready`: → Ready. `scarce`: of ten launches that
    find no capacity.
    """

    name: str
    machine: MachineKind
    resources: dict[str, str]
    launch: tuple[float, float] = (1.5, 4.0)
    register: tuple[float, float] = (8.0, 16.0)
    ready: tuple[float, float] = (3.0, 6.0)
    scarce: int = 0


def instance(name: str, machine: MachineKind, cpu: int, memory: str, **about: Any) -> Instance:
    """An instance with the GPUs of that machine."""
    amounts = {"cpu": str(cpu), "memory": memory, "pods": "110", NATIVE_GPU: str(GPUS_A_NODE)}
    return Instance(name, machine, amounts, **about)


INSTANCES: Final = {
    "b200-spot": instance("b200.8x.spot", B200, 192, "2Ti", scarce=4),
    "b200": instance("b200.8x", B200, 192, "2Ti", register=(14.0, 24.0)),
    "l4": instance("l4.8x", L4, 96, "384Gi", register=(5.0, 10.0), ready=(2.0, 4.0)),
}
"""NodePool → its instance."""


def taint_of(label: str) -> dict[str, str]:
    """The taint of a pool's nodes, which keeps other teams' pods off."""
    return {"key": "dedicated", "value": label, "effect": "NoSchedule"}


def node_pool(name: str, *, weight: int, nodes: int, capacity: str = "on-demand", label: str) -> Object:
    """A NodePool of at most so many nodes. `label`: of its nodes, under `pool`."""
    made = INSTANCES[name]
    requirements = {INSTANCE_LABEL: made.name, CAPACITY_LABEL: capacity, ZONE_LABEL: "hall-2"}
    shape = {
        "gpu.scheduling/model": made.machine.model,
        "gpu.scheduling/gpus": str(GPUS_A_NODE),
        "gpu.scheduling/gpu-memory": f"{made.machine.memory_gib}Gi",
        "gpu.scheduling/links": "all" if made.machine.links else "none",
    }
    return {
        "metadata": {"name": name, "annotations": shape},
        "spec": {
            "weight": weight,
            "limits": {NATIVE_GPU: str(nodes * GPUS_A_NODE)},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": f"{EMPTY_FOR}s"},
            "template": {
                "metadata": {"labels": {"pool": label}},
                "spec": {
                    "expireAfter": "Never",
                    "taints": [taint_of(label)],
                    "requirements": [
                        {"key": key, "operator": "In", "values": [value]} for key, value in requirements.items()
                    ],
                },
            },
        },
    }


POOLS: Final = (
    node_pool("b200-spot", weight=20, nodes=1, capacity="spot", label="burst"),
    node_pool("b200", weight=10, nodes=2, label="burst"),
    node_pool("l4", weight=10, nodes=2, label="video"),
)


def labels_of(pool: Object) -> dict[str, str]:
    """Labels of the pool's nodes: those of its template, and what its requirements fix."""
    template = pool["spec"]["template"]
    fixed = {
        one["key"]: one["values"][0]
        for one in template["spec"].get("requirements") or ()
        if one["operator"] == "In" and len(one["values"]) == 1
    }
    own = (template.get("metadata") or {}).get("labels") or {}
    return {NODEPOOL_LABEL: pool["metadata"]["name"], **fixed, **own}
