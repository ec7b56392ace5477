"""Trigger pods: their names and manifests, what they ask for, and which pods of the cluster they are.

Pure. Called by `autoscaling.rounds`. Invariants: the name follows from the scaling request and the ordinal, so a pod
that is made twice is made once; requests are limits; a trigger lands neither beside another one nor on a node that has
the label in-use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from autoscaling.models import Pool
from autoscaling.pools import Excluded, Picks, known_labels
from kube.karpenter import INSTANCE_TYPE_LABEL
from kube.keys import COMPONENT_LABEL, GROUP, IN_USE_LABEL, NATIVE_GPU, NODEPOOL_LABEL, TRIGGER
from kube.names import LABEL_LONGEST
from kube.node_rules import NO_EXECUTE
from kube.objects import Pod, ResourceRequirements
from kube.quantities import QuantityError, format_bytes, parse_milli

MODEL: Final = f"{GROUP}/gpu-model"
POOL: Final = f"{GROUP}/pool"
TYPE: Final = f"{GROUP}/trigger-type"
DEADLINE_SECONDS: Final = 600
CPU_LEAST: Final = 100
"""Thousandths of a CPU."""
PODS_NAMED: Final = 20
_OF_EVERY_POD: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Tolerations that the API server gives to every pod, a trigger pod too."""
HOSTNAME: Final = "kubernetes.io/hostname"
STORAGE: Final = "ephemeral-storage"


class Need(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shape of need: what the pods of a node ask of it beside amounts. Whatever their dialects."""

    selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...]
    types: tuple[str, ...]
    excluded: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(label, values that the node must not have), sorted."""

    @property
    def digest(self) -> str:
        """Equal for equal needs."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:32]


def need_of(pods: Sequence[Pod], pool: Pool, picks: Picks, excluded: Excluded, types: Iterable[str]) -> Need:
    """What these pods ask of a node of the pool. `picks`, `excluded`: those of the plan's entry."""
    selector = dict(picks)
    tolerations: dict[str, dict[str, str]] = {}
    for pod in pods:
        selector |= known_labels(pool, pod.spec.node_selector or {})
        for one in pod.spec.tolerations or ():
            if one.key in _OF_EVERY_POD and one.effect == NO_EXECUTE:
                continue
            plain = {key: value for key, value in msgspec.to_builtins(one).items() if value}
            tolerations[str(sorted(plain.items()))] = plain
    selector.pop(HOSTNAME, None)
    tolerated = tuple(tolerations[key] for key in sorted(tolerations))
    barred = tuple(sorted((key, tuple(values)) for key, values in excluded.items()))
    return Need(dict(sorted(selector.items())), tolerated, tuple(sorted(types)), barred)


def trigger_name(model: str, request_id: int, ordinal: int, *, scope: str) -> str:
    """`gpu-trigger-<model>-<hash>`. `scope`: the installation, so that two in one namespace do not meet."""
    word = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:30].strip("-") or "none"
    digest = hashlib.sha256(f"{scope}/{request_id}/{ordinal}".encode()).hexdigest()[:12]
    return f"gpu-trigger-{word}-{digest}"


def manifest(
    *,
    name: str,
    namespace: str,
    image: str,
    pool: Pool,
    model: str,
    need: Need,
    gpus: int,
    pods: Sequence[Pod],
    original: Mapping[str, Any],
) -> dict[str, Any]:
    """The pod. `pods`: those planned for the node; `original`: what it is made for."""
    cpu, memory = CPU_LEAST, gpus * pool.trigger_memory
    wanted_cpu = sum(_request_of(pod, "cpu", 1) for pod in pods)
    cpu, memory = max(cpu, wanted_cpu), max(memory, sum(_request_of(pod, "memory", 1000) for pod in pods))
    storage = sum(_request_of(pod, STORAGE, 1000) for pod in pods)
    amounts = {"cpu": f"{cpu}m"} | ({"memory": format_bytes(memory)} if memory else {})
    amounts |= {STORAGE: format_bytes(storage)} if storage else {}
    if gpus:
        amounts = {NATIVE_GPU: str(gpus), **amounts}
    selector = {NODEPOOL_LABEL: pool.name, **need.selector}
    if pool.instance_type:
        selector[INSTANCE_TYPE_LABEL] = pool.instance_type
    named = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods[:PODS_NAMED]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                COMPONENT_LABEL: TRIGGER,
                MODEL: _label(model),
                POOL: _label(pool.name),
                TYPE: "gpu-scaling",
                "app.kubernetes.io/managed-by": "gpuplane",
            },
            "annotations": {
                f"{GROUP}/created-by": "gpuplane",
                f"{GROUP}/purpose": "trigger-karpenter-scaling",
                f"{GROUP}/original-request": msgspec.json.encode(
                    {**original, "pods": named, "podCount": len(pods)}
                ).decode(),
                f"{GROUP}/cleanup-after": "node-ready",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": selector,
            "tolerations": _tolerations(pool, need),
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": key, "operator": "NotIn", "values": list(values)}
                                    for key, values in ((IN_USE_LABEL, ("true",)), *need.excluded)
                                ]
                            }
                        ]
                    }
                },
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"labelSelector": {"matchLabels": {COMPONENT_LABEL: TRIGGER}}, "topologyKey": HOSTNAME}
                    ]
                },
            },
            "containers": [
                {"name": "gpu-trigger", "image": image, "resources": {"requests": amounts, "limits": amounts}}
            ],
        },
    }


def _tolerations(pool: Pool, need: Need) -> list[dict[str, str]]:
    found = [{"key": NATIVE_GPU, "operator": "Exists"}]
    for taint in pool.taints:
        one = {"key": taint["key"], "effect": taint["effect"], "operator": "Equal" if taint.get("value") else "Exists"}
        if taint.get("value"):
            one["value"] = taint["value"]
        found.append(one)
    return [*found, *(one for one in need.tolerations if one not in found)]


def _request_of(pod: Pod, resource: str, unit: int) -> int:
    """What the pod requests of the resource, in thousandths over `unit`, as kube-scheduler counts it: its own request,
    else the larger of its containers' sum and of an init container with the sidecars started before it; and overhead.

    A malformed amount counts nothing: the API server takes none. Source: `k8s.io/component-helpers/resource`.
    """
    sidecars = largest = 0
    for one in pod.spec.init_containers or ():
        own = _milli(one.resources, resource)
        sidecars += own if one.is_sidecar else 0
        largest = max(largest, sidecars if one.is_sidecar else sidecars + own)
    together = sidecars + sum(_milli(one.resources, resource) for one in pod.spec.containers or ())
    of_pod = _milli(pod.spec.resources, resource)
    overhead = _milli(ResourceRequirements(requests=pod.spec.overhead), resource)
    return -(-((of_pod or max(together, largest)) + overhead) // unit)


def _milli(stated: ResourceRequirements | None, resource: str) -> int:
    requests, limits = (stated and stated.requests) or {}, (stated and stated.limits) or {}
    try:
        return parse_milli(requests.get(resource, limits.get(resource, 0)))
    except QuantityError:
        return 0


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:LABEL_LONGEST].strip("-._")
