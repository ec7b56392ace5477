"""The steps of taking over a cluster in which others hand out devices, and which of them hold now (DEV-11).

Called by `manage.py takeover`; docs/takeover.md describes the steps. Reads the cluster and the ledger at about one
moment and writes nothing. Invariants: a step that cannot be seen to hold does not hold; the first `NAMED` missing
things are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
from django.conf import settings

from allocations.choices import State
from allocations.models import Allocation
from allocations.reconcile.closing import closed_nodes
from allocations.selectors import holding_pods
from claims.dialects.native import is_mig_resource
from claims.dialects.parse import asks_for_devices, is_request_resource
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


class Step(msgspec.Struct, frozen=True):
    """One step. `missing`: what keeps it from holding; `advice`: what to do about that."""

    name: str
    title: str
    missing: tuple[str, ...]
    advice: str

    @property
    def holds(self) -> bool:
        """Whether it is done."""
        return not self.missing


@dataclass(frozen=True)
class _Observed:
    """The state of the cluster and the ledger."""

    pods: Sequence[Pod]
    unreadable: Sequence[str]
    machines: Sequence[kube_nodes.Node]
    hooks: Sequence[Configuration]
    labels: dict[str, dict[str, str]]

    @cached_property
    def requesting(self) -> list[Pod]:
        """Unfinished pods that ask for devices."""
        return [pod for pod in self.pods if not pod.finished and asks_for_devices(pod)]

    @cached_property
    def to_take_over(self) -> list[Pod]:
        """Those of them that are neither opted out nor in namespaces that the webhooks exclude."""
        taken = [pod for pod in self.requesting if pod.metadata.namespace not in self.excluded]
        return [pod for pod in taken if (pod.metadata.labels or {}).get(TAKEOVER) != TAKEOVER_DISABLED]

    @cached_property
    def excluded(self) -> frozenset[str]:
        """Namespaces that the webhooks exclude by name."""
        found = [hook.excluded_namespaces for one in self.hooks for hook in one.webhooks or () if hook.name in WEBHOOKS]
        return frozenset.intersection(*found) if found else frozenset({"kube-system", settings.GPUPLANE_NAMESPACE})

    @cached_property
    def holding(self) -> set[str]:
        """UIDs of pods that hold devices in the ledger."""
        return holding_pods()

    @cached_property
    def known(self) -> dict[str, Node]:
        """Present nodes of the ledger, by name."""
        return {node.name: node for node in Node.objects.exclude(state=NodeState.GONE)}


def takeover_steps(cluster: Cluster) -> list[Step]:
    """All steps, in their order. Raises KubeError."""
    listed = pods.list_all(cluster)
    observed = _Observed(
        pods=listed.items,
        unreadable=["/".join(one.key) for one in listed.unreadable],
        machines=kube_nodes.list_all(cluster).items,
        hooks=configurations(cluster),
        labels=namespace_labels(cluster),
    )
    return [Step(name, title, *check(observed)) for name, (title, check) in _STEPS.items()]


Verdict = tuple[tuple[str, ...], str]
"""(what is missing, advice)."""


def _webhooks(observed: _Observed) -> Verdict:
    there = {hook.name for one in observed.hooks for hook in one.webhooks or ()}
    missing = [f"webhook {name} is not configured" for name in WEBHOOKS if name not in there]
    return _few(missing), "install the chart with webhooks.enabled=true, at first with webhooks.scope=ours"


def _nodes(observed: _Observed) -> Verdict:
    having = set(Device.objects.filter(presence=Presence.PRESENT).values_list("node__name", flat=True))
    missing = []
    for machine in observed.machines:
        if machine.name not in having and not _has_gpus(machine):
            continue
        node = observed.known.get(machine.name)
        if node is None or machine.name not in having:
            missing.append(f"node {machine.name} has GPUs, and no agent or inventory has reported its devices")
        elif node.state != NodeState.READY:
            missing.append(f"node {machine.name} is {node.state}: {node.problem or 'no reason given'}")
    return _few(missing), "run the agent on them, or PUT their inventory; wait until they are ready"


def _has_gpus(machine: kube_nodes.Node) -> bool:
    advertised = any(is_request_resource(name) for name in _capacity_of_others(machine))
    return advertised or any(machine.labels.get(label) == "true" for label in GPU_LABELS)


def _capacity_of_others(machine: kube_nodes.Node) -> dict[str, str]:
    """Resource → amount of what others than gpuplane advertise on the node."""
    own = machine.annotations.get(ADVERTISED, "").split(",")
    return {name: amount for name, amount in (machine.status.capacity or {}).items() if name not in own}


def _checkpoints(observed: _Observed) -> Verdict:
    read = set(KubeletCheckpoint.objects.values_list("node__name", flat=True))
    blind = sorted(
        {
            pod.spec.node_name
            for pod in observed.requesting
            if pod.spec.node_name in observed.known
            and pod.spec.node_name not in read
            and pod.metadata.uid not in observed.holding
        }
    )
    missing = [f"node {name} runs pods with devices, and its kubelet's checkpoint is not known" for name in blind]
    return _few(missing), "the agent reads it; see that it runs there with the kubelet's folder mounted"


def _running(observed: _Observed) -> Verdict:
    missing = [
        f"pod {_label(pod)} runs on {pod.spec.node_name} with devices that the ledger does not know"
        for pod in observed.requesting
        if pod.spec.node_name and pod.metadata.uid not in observed.holding
    ]
    missing += [f"pod {name} cannot be read" for name in observed.unreadable]
    missing += closed_nodes()
    return _few(missing), "manage.py reconcile says why; pods whose devices are unknown have to be started again"


def _pending(observed: _Observed) -> Verdict:
    missing = [
        f"pod {_label(pod)} waits for scheduler {pod.spec.scheduler_name or 'default-scheduler'}"
        for pod in observed.to_take_over
        if not pod.spec.node_name and pod.spec.scheduler_name != settings.GPUPLANE_SCHEDULER_NAME
    ]
    return _few(missing), "stop what creates such pods, let them be placed or delete them, then stop that scheduler"


def _namespaces(observed: _Observed) -> Verdict:
    namespaces = sorted({pod.metadata.namespace for pod in observed.to_take_over})
    missing = [
        f"namespace {name} is not labelled"
        for name in namespaces
        if observed.labels.get(name, {}).get(TAKEOVER) != TAKEOVER_ENABLED
    ]
    return _few(missing), f"kubectl label namespace <name> {TAKEOVER}={TAKEOVER_ENABLED}"


def _device_plugins(observed: _Observed) -> Verdict:
    missing = []
    for machine in observed.machines:
        node = observed.known.get(machine.name)
        capacity = _capacity_of_others(machine).items()
        amounts = [amount for name, amount in capacity if name == NATIVE_GPU or is_mig_resource(name)]
        if node is not None and node.mode == Mode.EXCLUSIVE and any(map(_some, amounts)):
            missing.append(f"node {machine.name} is in mode exclusive, and a device plugin hands out its GPUs")
    return _few(missing), "remove the device plugin there, or label the node gpu.scheduling/mode=device-plugin"


def _some(amount: str) -> bool:
    """Whether the amount is above 0, or cannot be read."""
    try:
        return parse_quantity(amount) > 0
    except QuantityError:
        return True


def _placed(_world: _Observed) -> Verdict:
    states = (State.BOUND, State.RELEASING, State.RELEASED)
    found = Allocation.objects.filter(created_by="scheduler", state__in=states).exclude(pod_uid="").exists()
    return _few([] if found else ["no pod has been placed by gpuplane yet"]), "create one pod with a device and look"


def _guard(observed: _Observed) -> Verdict:
    scopes = {
        (one.metadata.annotations or {}).get(SCOPE, "")
        for one in observed.hooks
        if any(hook.name in WEBHOOKS for hook in one.webhooks or ())
    }
    missing = [] if scopes == {"everywhere"} else ["the webhooks look only at pods that are meant for gpuplane"]
    return _few(missing), "helm upgrade with webhooks.scope=everywhere"


def _label(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _few(missing: Sequence[str]) -> tuple[str, ...]:
    more = len(missing) - NAMED
    return (*missing[:NAMED], f"and {more} more") if more > 0 else tuple(missing)


_STEPS: Final[Mapping[str, tuple[str, Callable[[_Observed], Verdict]]]] = {
    "webhooks": ("gpuplane's webhooks are in place", _webhooks),
    "nodes": ("every node with GPUs is known, with its devices", _nodes),
    "checkpoints": ("what kubelets gave away by themselves is known", _checkpoints),
    "pods": ("every running pod with devices is in the ledger", _running),
    "pending": ("no pod with devices waits for another scheduler", _pending),
    "namespaces": ("every namespace with such pods is taken over", _namespaces),
    "device-plugins": ("nobody else hands out the GPUs of nodes in mode exclusive", _device_plugins),
    "placed": ("gpuplane has placed a pod", _placed),
    "guard": ("nobody else places pods with devices, in the whole cluster", _guard),
}
"""The steps in their order: name → (what holds once it is done, check)."""
TITLES: Final = {name: title for name, (title, _) in _STEPS.items()}
