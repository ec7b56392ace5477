"""Taking over a cluster in which others hand out devices: the steps in their order, and which of them hold now (DEV-11).

Called by `manage.py takeover`; docs/takeover.md tells the steps to people. Reads the cluster and the ledger at about one moment and writes
nothing. Kept true: a step that cannot be seen to hold does not hold; what is missing is named, the first `NAMED` of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
from django.conf import settings

from allocations.choices import State
from allocations.models import Allocation
from allocations.reconcile.closing import closed_nodes
from allocations.selectors import holding_pods
from claims.dialects import asks_for_devices
from claims.dialects.native import is_mig_resource
from claims.dialects.parse import is_asking_resource
from kube import nodes as kube_nodes
from kube import pods
from kube.client import Cluster
from kube.keys import ADVERTISED, NATIVE_GPU, TAKEOVER, TAKEOVER_DISABLED, TAKEOVER_ENABLED
from kube.objects import Pod
from kube.quantities import QuantityError, parse_quantity
from kube.webhooks import Configuration, configurations, namespace_labels
from nodes.choices import Mode, NodeState, Presence
from nodes.models import Device, KubeletCheckpoint, Node

NAMED: Final = 10
SCOPE: Final = "gpu.scheduling/scope"
"""Annotation of the chart's webhook configurations: `everywhere` or `ours`."""
WEBHOOKS: Final = (
    "takeover.pods.gpu.scheduling",
    "mutate.pods.gpu.scheduling",
    "validate.pods.gpu.scheduling",
    "validate.bindings.gpu.scheduling",
)
GPU_LABELS: Final = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Labels by which feature discovery marks nodes with NVIDIA's GPUs."""


TITLES: Final = {
    "webhooks": "gpuplane's webhooks are in place",
    "nodes": "every node with GPUs is known, with its devices",
    "checkpoints": "what kubelets gave away by themselves is known",
    "pods": "every running pod with devices is in the ledger",
    "pending": "no pod with devices waits for another scheduler",
    "namespaces": "every namespace with such pods is taken over",
    "device-plugins": "nobody else hands out the GPUs of nodes in mode exclusive",
    "placed": "gpuplane has placed a pod",
    "guard": "nobody else places pods with devices, in the whole cluster",
}
"""The steps in their order: name → what holds once it is done."""


class Step(msgspec.Struct, frozen=True):
    """One step. `missing`: what keeps it from holding, empty where it holds; `advice`: what to do then."""

    name: str
    title: str
    missing: tuple[str, ...]
    advice: str

    @property
    def holds(self) -> bool:
        """Whether it is done."""
        return not self.missing


@dataclass(frozen=True)
class _World:
    """What cluster and ledger look like."""

    pods: Sequence[Pod]
    unreadable: Sequence[str]
    machines: Sequence[kube_nodes.Node]
    hooks: Sequence[Configuration]
    labels: dict[str, dict[str, str]]

    @cached_property
    def asking(self) -> list[Pod]:
        """Pods that ask for devices and have not ended."""
        return [pod for pod in self.pods if not pod.finished and asks_for_devices(pod)]

    @cached_property
    def ours_to_take(self) -> list[Pod]:
        """Those of them that are to come to gpuplane: not in namespaces that the webhooks leave alone, and not opted out."""
        return [
            pod for pod in self.asking if pod.metadata.namespace not in self.excluded and not self.is_opted_out(pod)
        ]

    @cached_property
    def excluded(self) -> frozenset[str]:
        """Namespaces that are left alone by name."""
        found = [hook.excluded_namespaces for one in self.hooks for hook in one.webhooks or () if hook.name in WEBHOOKS]
        return frozenset.intersection(*found) if found else frozenset({"kube-system", settings.GPUPLANE_NAMESPACE})

    def is_opted_out(self, pod: Pod) -> bool:
        """Whether the pod says that it is not to be taken over."""
        return (pod.metadata.labels or {}).get(TAKEOVER) == TAKEOVER_DISABLED

    @cached_property
    def holding(self) -> set[str]:
        """UIDs of the pods of the ledger."""
        return holding_pods()

    @cached_property
    def known(self) -> dict[str, Node]:
        """Nodes of the ledger that are there, by name."""
        return {node.name: node for node in Node.objects.exclude(state=NodeState.GONE)}


def takeover_steps(cluster: Cluster) -> list[Step]:
    """All steps, in their order. Raises KubeError."""
    listed = pods.list_all(cluster)
    world = _World(
        pods=listed.items,
        unreadable=["/".join(one.key) for one in listed.unreadable],
        machines=kube_nodes.list_all(cluster).items,
        hooks=configurations(cluster),
        labels=namespace_labels(cluster),
    )
    verdicts = {
        "webhooks": _webhooks(world),
        "nodes": _nodes(world),
        "checkpoints": _checkpoints(world),
        "pods": _running(world),
        "pending": _pending(world),
        "namespaces": _namespaces(world),
        "device-plugins": _device_plugins(world),
        "placed": _placed(),
        "guard": _guard(world),
    }
    return [Step(name, title, *verdicts[name]) for name, title in TITLES.items()]


Verdict = tuple[tuple[str, ...], str]
"""(what is missing, advice)."""


def _webhooks(world: _World) -> Verdict:
    there = {hook.name for one in world.hooks for hook in one.webhooks or ()}
    missing = [f"webhook {name} is not configured" for name in WEBHOOKS if name not in there]
    return _few(missing), "install the chart with webhooks.enabled=true, at first with webhooks.scope=ours"


def _nodes(world: _World) -> Verdict:
    having = set(Device.objects.filter(presence=Presence.PRESENT).values_list("node__name", flat=True))
    missing = []
    for machine in world.machines:
        if machine.name not in having and not _has_gpus(machine):
            continue
        node = world.known.get(machine.name)
        if node is None or machine.name not in having:
            missing.append(f"node {machine.name} has GPUs, and no agent or inventory has told of its devices")
        elif node.state != NodeState.READY:
            missing.append(f"node {machine.name} is {node.state}: {node.problem or 'no reason given'}")
    return _few(missing), "run the agent on them, or PUT their inventory; wait until they are ready"


def _has_gpus(machine: kube_nodes.Node) -> bool:
    ours = machine.annotations.get(ADVERTISED, "").split(",")
    advertised = [name for name in machine.status.capacity or {} if is_asking_resource(name) and name not in ours]
    return bool(advertised) or any(machine.labels.get(label) == "true" for label in GPU_LABELS)


def _checkpoints(world: _World) -> Verdict:
    told = set(KubeletCheckpoint.objects.values_list("node__name", flat=True))
    blind = sorted(
        {
            pod.spec.node_name
            for pod in world.asking
            if pod.spec.node_name in world.known
            and pod.spec.node_name not in told
            and pod.metadata.uid not in world.holding
        }
    )
    missing = [f"node {name} runs pods with devices, and its kubelet's checkpoint is not known" for name in blind]
    return _few(missing), "the agent reads it; see that it runs there with the kubelet's folder mounted"


def _running(world: _World) -> Verdict:
    missing = [
        f"pod {_label(pod)} runs on {pod.spec.node_name} with devices that the ledger does not know"
        for pod in world.asking
        if pod.spec.node_name and pod.metadata.uid not in world.holding
    ]
    missing += [f"pod {name} cannot be read" for name in world.unreadable]
    missing += closed_nodes()
    return _few(missing), "manage.py reconcile says why; pods whose devices nobody can tell have to be started again"


def _pending(world: _World) -> Verdict:
    missing = [
        f"pod {_label(pod)} waits for scheduler {pod.spec.scheduler_name or 'default-scheduler'}"
        for pod in world.ours_to_take
        if not pod.spec.node_name and pod.spec.scheduler_name != settings.GPUPLANE_SCHEDULER_NAME
    ]
    return _few(missing), "stop what creates such pods, let them be placed or delete them, then stop that scheduler"


def _namespaces(world: _World) -> Verdict:
    asking = sorted({pod.metadata.namespace for pod in world.ours_to_take})
    missing = [
        f"namespace {name} is not labelled"
        for name in asking
        if world.labels.get(name, {}).get(TAKEOVER) != TAKEOVER_ENABLED
    ]
    return _few(missing), f"kubectl label namespace <name> {TAKEOVER}={TAKEOVER_ENABLED}"


def _device_plugins(world: _World) -> Verdict:
    missing = []
    for machine in world.machines:
        node = world.known.get(machine.name)
        ours = machine.annotations.get(ADVERTISED, "").split(",")
        told = [
            amount
            for name, amount in (machine.status.capacity or {}).items()
            if name not in ours and (name == NATIVE_GPU or is_mig_resource(name))
        ]
        if node is not None and node.mode == Mode.EXCLUSIVE and any(map(_some, told)):
            missing.append(f"node {machine.name} is in mode exclusive, and a device plugin hands out its GPUs")
    return _few(missing), "remove the device plugin there, or label the node gpu.scheduling/mode=device-plugin"


def _some(amount: str) -> bool:
    """Whether it is more than nothing, or cannot be read."""
    try:
        return parse_quantity(amount) > 0
    except QuantityError:
        return True


def _placed() -> Verdict:
    states = (State.BOUND, State.RELEASING, State.RELEASED)
    found = Allocation.objects.filter(created_by="scheduler", state__in=states).exclude(pod_uid="").exists()
    return _few([] if found else ["no pod has been placed by gpuplane yet"]), "create one pod with a device and look"


def _guard(world: _World) -> Verdict:
    scopes = {
        (one.metadata.annotations or {}).get(SCOPE, "")
        for one in world.hooks
        if any(hook.name in WEBHOOKS for hook in one.webhooks or ())
    }
    missing = [] if scopes == {"everywhere"} else ["the webhooks look only at pods that are meant for gpuplane"]
    return _few(missing), "helm upgrade with webhooks.scope=everywhere"


def _label(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _few(missing: Iterable[str]) -> tuple[str, ...]:
    listed = list(missing)
    more = len(listed) - NAMED
    return (*listed[:NAMED], f"and {more} more") if more > 0 else tuple(listed)
