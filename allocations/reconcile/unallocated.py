"""Pods that run and ask for devices, and that the ledger knows nothing of.

Called by `allocations.reconcile.run` and `unverified_devices`. Invariant: such a pod may hold any device of its node,
so new devices stay closed while it may still be told which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from allocations.component_pods import is_trigger, trigger_pods
from allocations.reconcile.adoption import GivenByPod
from allocations.reconcile.report import Difference
from claims.dialects.parse import asks_for_devices, may_run_with_devices
from claims.dialects.read_running import kubelet_uid
from claims.dialects.registry import RESULT_SOURCES
from kube.client import Cluster
from kube.objects import Pod
from nodes.choices import Presence
from nodes.models import Device, KubeletCheckpoint, Node

CHECKPOINT_WITHIN: Final = timedelta(seconds=60)
"""No new node waits longer for the kubelet's record, which its agent sends right after the inventory."""


def bound_elsewhere(suspects: Collection[Pod], given: GivenByPod) -> list[Difference]:
    """Those of the pods without devices that run on a node with devices: bound past gpuplane, trigger pods aside.

    Pods that ask for shared GPUs alone, which gpuplane never gives, are left out where the kubelet's record names none.
    """
    names = {pod.spec.node_name for pod in suspects}
    there = Device.objects.filter(node__name__in=names).exclude(presence=Presence.REMOVED)
    ours = set(there.values_list("node__name", flat=True))
    none_given = _without_shared_gpus(suspects, given)
    return [
        Difference(
            f"pod {pod.metadata.namespace}/{pod.metadata.name} ({pod.metadata.uid}) asks for devices and runs on "
            f"{pod.spec.node_name}, where gpuplane gave it none",
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=pod.spec.node_name,
        )
        for pod in suspects
        if pod.spec.node_name in ours and not is_trigger(pod) and pod.metadata.uid not in none_given
    ]


def _without_shared_gpus(suspects: Iterable[Pod], given: GivenByPod) -> set[str]:
    """UIDs of those that ask for shared GPUs alone, on nodes with a kubelet's record that leaves them out."""
    found = [
        pod for pod in suspects if not asks_for_devices(pod) and (pod.spec.node_name, kubelet_uid(pod)) not in given
    ]
    nodes = {pod.spec.node_name for pod in found}
    if not nodes:
        return set()
    recorded = set(KubeletCheckpoint.objects.filter(node__name__in=nodes).values_list("node__name", flat=True))
    return {pod.metadata.uid for pod in found if pod.spec.node_name in recorded}


def awaiting_checkpoint(suspects: Collection[Pod], now: datetime) -> set[str]:
    """New nodes of pods without devices, whose kubelet's record may still come."""
    names = {pod.spec.node_name for pod in suspects}
    young = Node.objects.filter(name__in=names, registered_at__gt=now - CHECKPOINT_WITHIN, checkpoint__isnull=True)
    return set(young.values_list("name", flat=True))


def without_devices(cluster: Cluster, pods: Iterable[Pod], known: Collection[str]) -> list[Pod]:
    """The pods that run and ask for devices, without a row or a result. Raises `kube.errors`.

    `known`: UIDs of pods that had a row before the pods were listed. A pod bound by gpuplane has a result. Trigger pods
    are deleted once their node is ready: one that ended since the list would keep its devices closed until the next.
    """
    found = [
        pod
        for pod in pods
        if pod.spec.node_name
        and not pod.finished
        and pod.metadata.uid not in known
        and not any(key in pod.annotations for key in RESULT_SOURCES)
        and may_run_with_devices(pod)
    ]
    if not any(map(is_trigger, found)):
        return found
    there = {pod.metadata.uid for pod in trigger_pods(cluster) if not pod.finished}
    return [pod for pod in found if not is_trigger(pod) or pod.metadata.uid in there]
