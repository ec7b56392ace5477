"""Fleets, pods and queues in short, for tests of scenarios with queues and gangs."""

from __future__ import annotations

from typing import Any

from allocations.scenario import Result, parse_scenario, run_scenario

Manifest = dict[str, Any]


def node(name: str, gpus: int = 8, *, model: str = "H100", memory: str = "80Gi", **labels: str) -> Manifest:
    """A node of whole GPUs."""
    devices = [
        {"minor": minor, "uuid": f"GPU-{name}-{minor}", "model": model, "memory": memory} for minor in range(gpus)
    ]
    return {"name": name, "devices": devices, "labels": labels}


def pod(
    name: str,
    gpus: int = 1,
    *,
    queue: str = "",
    gang: str = "",
    on: str = "",
    priority: int = 0,
    preemptible: bool = True,
    leaving: bool = False,
    created: str = "",
    namespace: str = "default",
    memory: str = "",
    selector: dict[str, str] | None = None,
    claim: str = "",
) -> Manifest:
    """A pod. `on`: the devices of one that runs, `n1:0,1`. `memory`: of a share of one GPU."""
    labels = {"gpu.scheduling/queue": queue, "gpu.scheduling/gang": gang}
    labels = {key: value for key, value in labels.items() if value}
    if not preemptible:
        labels["gpu.scheduling/preemptible"] = "false"
    metadata: Manifest = {"name": name, "namespace": namespace, "labels": labels}
    asked = {"koordinator.sh/gpu-memory": memory} if memory else {"nvidia.com/gpu": str(gpus)}
    spec: Manifest = {"containers": [{"name": "main", "resources": {"limits": {} if claim else asked}}]}
    spec["priority"] = priority
    if claim:
        metadata["annotations"] = {"gpu.scheduling/claim": claim}
    if on:
        metadata["annotations"] = {"gpu.scheduling/allocated": on}
        spec["nodeName"] = on.partition(":")[0]
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if created:
        metadata["creationTimestamp"] = created
    if selector:
        spec["nodeSelector"] = selector
    return {"metadata": metadata, "spec": spec}


def pods(count: int, name: str, gpus: int = 1, **about: Any) -> list[Manifest]:
    """Equal pods: `name-0`, `name-1`, …"""
    return [pod(f"{name}-{number}", gpus, **about) for number in range(count)]


def quota(deserved: float = 0, limit: float | None = None, weight: float = 1, models: tuple[str, ...] = ()) -> Manifest:
    """An entry of a queue."""
    return {"models": list(models), "deserved": deserved, "limit": limit, "weight": weight}


def queue(name: str, *quotas: Manifest, **spec: Any) -> Manifest:
    """A GpuQueue."""
    return {"metadata": {"name": name}, "spec": {**spec, "quotas": list(quotas)}}


def gang(name: str, least: int, **spec: Any) -> Manifest:
    """A GpuGang of the namespace `default`."""
    return {"metadata": {"name": name}, "spec": {"minMember": least, **spec}}


def run(**scenario: Any) -> Result:
    """The result."""
    return run_scenario(parse_scenario(scenario))


def placed(result: Result) -> dict[str, str]:
    """Pod → node, of those that were placed."""
    return {one.pod.removeprefix("default/"): one.node for one in result.decisions if one.node is not None}


def why(result: Result) -> dict[str, str]:
    """Pod → its summary, of those that wait."""
    return {one.pod.removeprefix("default/"): one.summary for one in result.decisions if one.node is None}


def evicted(result: Result) -> list[tuple[str, str, str]]:
    """(pod, for, by)."""
    return [
        (one.pod.removeprefix("default/"), one.taker.removeprefix("default/"), one.by) for one in result.evictions or ()
    ]


def waits(result: Result) -> dict[str, tuple[str, ...]]:
    """Pod → the pods that have to be gone first."""
    return {
        one.pod.removeprefix("default/"): tuple(name.removeprefix("default/") for name in one.waits_for)
        for one in result.decisions
        if one.waits_for
    }
