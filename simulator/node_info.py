"""Where a pod may go by the rules of kube-scheduler: resources, taints, selectors, affinity and anti-affinity.

Read by the default scheduler and by Karpenter, which both ask it of nodes, and Karpenter of nodes to come. Invariants:
a pod that was seated counts for those after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kube.node_rules import NodeTraits, refusal_of
from kube.objects import PodSpec, Taint
from kube.quantities import parse_milli
from simulator.cluster.kinds import NODES, PODS, Object
from simulator.cluster.store import Store

FINISHED: Final = ("Succeeded", "Failed")
_TAINTS: Final = list[Taint]
_NOBODY: Final[Mapping[str, str]] = {}


@dataclass(slots=True)
class NodeInfo:
    """A node, or one to come. `free` in thousandths; `labels_of`: labels of the pods there, with their namespaces."""

    name: str
    labels: Mapping[str, str]
    taints: list[Taint]
    free: Counter[str]
    unschedulable: bool = False
    labels_of: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def refusal(self, pod: Object) -> str:
        """Why the pod may not go there; empty if it may."""
        spec = msgspec.convert(pod["spec"], PodSpec)
        refused = refusal_of(spec, NodeTraits(self.name, self.labels, self.taints, self.unschedulable))
        if refused:
            return refused
        lacking = next((name for name, asked in requests_of(pod).items() if asked > self.free[name]), "")
        if lacking:
            return f"Insufficient {lacking}"
        return "a pod there that it must not be beside" if self._is_repelled(pod) else ""

    def take(self, pod: Object) -> None:
        """Count the pod as one of the node."""
        self.free.subtract(requests_of(pod))
        self.labels_of.append((pod["metadata"]["namespace"], pod["metadata"].get("labels") or _NOBODY))

    def _is_repelled(self, pod: Object) -> bool:
        """Required anti-affinity within the pod's namespace, by labels that are equal."""
        stated = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
        for term in stated.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
            wanted = ((term.get("labelSelector") or {}).get("matchLabels") or {}).items()
            for namespace, labels in self.labels_of:
                if namespace == pod["metadata"]["namespace"] and wanted <= labels.items():
                    return True
        return False


def node_info(name: str, labels: Mapping[str, str], taints: Iterable[Any], amounts: Mapping[str, Any]) -> NodeInfo:
    """A node without pods. `amounts`: quantities."""
    free = Counter({key: parse_milli(amount) for key, amount in amounts.items()})
    return NodeInfo(name, labels, msgspec.convert(list(taints), _TAINTS), free)


def node_infos(store: Store) -> dict[str, NodeInfo]:
    """Every node with the pods that are bound to it, by name."""
    infos = {}
    for node in store.list(NODES):
        meta, spec = node["metadata"], node.get("spec") or {}
        info = node_info(
            meta["name"], meta.get("labels") or {}, spec.get("taints") or (), node["status"].get("allocatable") or {}
        )
        info.unschedulable = bool(spec.get("unschedulable"))
        infos[info.name] = info
    for pod in store.list(PODS):
        there = infos.get(pod["spec"].get("nodeName") or "")
        if there is not None and pod["status"].get("phase") not in FINISHED:
            there.take(pod)
    return infos


def requests_of(pod: Object) -> Counter[str]:
    """What its containers request together, in thousandths; limits count where nothing is requested."""
    found: Counter[str] = Counter(pods=1000)
    for container in pod["spec"].get("containers") or ():
        stated = container.get("resources") or {}
        for name, amount in {**(stated.get("limits") or {}), **(stated.get("requests") or {})}.items():
            found[name] += parse_milli(amount)
    return found
