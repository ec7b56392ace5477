"""The kube-scheduler of pods that name none, trigger pods among them.

Invariants: an extender is never asked; a pod that no node takes is called unschedulable, with the reasons counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from simulator.cluster.kinds import PODS, Object
from simulator.cluster.store import Store
from simulator.node_info import NodeInfo, node_infos
from simulator.pod_writes import is_waiting, unschedulable_write

NAME: Final = "default-scheduler"


def run_default_scheduler(store: Store) -> None:
    """Bind its pods, or say why not; one round."""
    waiting = [pod for pod in store.list(PODS) if is_waiting(pod) and pod["spec"].get("schedulerName") in (None, NAME)]
    if not waiting:
        return
    infos = node_infos(store)
    for pod in waiting:
        meta = pod["metadata"]
        refused = {name: info.refusal(pod) for name, info in infos.items()}
        fitting = sorted(name for name, why in refused.items() if not why)
        if not fitting:
            unschedulable_write(store, pod, why=counted(refused), by=NAME)
            continue
        infos[fitting[0]].take(pod)
        store.bind(meta["namespace"], meta["name"], {"metadata": {"uid": meta["uid"]}, "target": {"name": fitting[0]}})


def feasible(pod: Object, infos: Mapping[str, NodeInfo]) -> tuple[list[str], str]:
    """(nodes that kube-scheduler's own filters leave, why the others are out)."""
    refused = {name: info.refusal(pod) for name, info in infos.items()}
    return [name for name, why in refused.items() if not why], counted(refused)


def counted(refused: Mapping[str, str]) -> str:
    """`0/3 nodes are available: 2 Insufficient cpu.`, as kube-scheduler says it."""
    reasons = Counter(why for why in refused.values() if why)
    told = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
    return f"0/{len(refused)} nodes are available{f': {told}.' if told else '.'}"
