"""Slots as pods on a real cluster: the watch's own rights, the API server's Leases, KWOK in the place of kubelets
(SLOT-1b, SLOT-2).
"""

from __future__ import annotations

from typing import Any

from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.test_scheduling import watching
from tests.cluster.waiting import count_bound, gone, pods_of, said

HOME = "/api/v1/namespaces/gpuplane-system/pods"
MODEL = {"name": "hub/warm", "runtime": "vllm", "memory": "40Gi", "gpuCounts": [1], "keepWarm": 1, "image": "vllm:1"}


def rest(stack: Stack, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stack.gpuplane.rest.get(f"/api/v1/{path}").json()["results"]
    return found


def of_slots(stack: Stack) -> list[dict[str, Any]]:
    """Pods that are slots."""
    labels = [(one, one["metadata"].get("labels") or {}) for one in stack.api.items(HOME)]
    return [one for one, of in labels if of.get("gpu.scheduling/component") == "slot"]


def test_a_slot_is_a_pod(stack: Stack, namespace: str) -> None:
    """SLOT-1b SLOT-2 it has a GPU that no pod gets; deleted by somebody, it comes back; with its model it goes."""
    stack.add_nodes(["warm-1"])
    gpus = len([one for one in rest(stack, "devices/?node=warm-1") if one["type"] == "gpu"])
    answer = stack.gpuplane.rest.post("/api/v1/models/", json=MODEL)
    assert answer.status_code == 201, answer.text
    try:
        eventually(lambda: rest(stack, "slots/?state=ready"), seconds=60, what="a slot ready")
        (slot,) = rest(stack, "slots/?state=ready")
        (made,) = of_slots(stack)
        assert made["spec"]["nodeName"] == slot["runner"] == "warm-1"
        assert slot["address"] == f"{made['status']['podIP']}:8000"
        sharers = stack.leases()[f"gpu-warm-1-{slot['gpus'][0]}"]["metadata"]["annotations"]["gpu.scheduling/sharers"]
        assert f"slot/hub/warm/{slot['id']}" in sharers
        with watching(stack, namespace).watching() as seen:
            path = f"/api/v1/namespaces/{namespace}/pods"
            for number in range(gpus):
                stack.api.create(path, pod(f"p{number}", namespace, resources={"nvidia.com/gpu": 1}))
            seen.until(count_bound(gpus - 1), seconds=60, what="a pod on each other GPU")
            seen.until(lambda now: sum(map(bool, map(said, pods_of(now).values()))) == 1, seconds=30, what="one waits")
            stack.api.delete(path, grace_seconds=0)
            seen.until(gone(f"p{number}" for number in range(gpus)), seconds=30, what="the pods gone")
        stack.api.delete(f"{HOME}/{made['metadata']['name']}")

        def another() -> bool:
            ready = rest(stack, "slots/?state=ready")
            return bool(ready) and ready[0]["id"] != slot["id"]

        eventually(another, seconds=90, what="another slot in its place")
        (before,) = [one for one in rest(stack, "slots/") if one["id"] == slot["id"]]
        assert before["state"] == "stopped"
        assert "pod" in before["reason"]
    finally:
        stack.gpuplane.rest.delete("/api/v1/models/hub/warm/")
    eventually(lambda: not of_slots(stack), seconds=60, what="its pods gone")
    eventually(lambda: not rest(stack, "slots/?state=draining"), seconds=30, what="its slots stopped")
    eventually(
        lambda: not any("slot/" in one["holder"] for one in rest(stack, "allocations/?state=bound&page_size=100")),
        seconds=30,
        what="its memory free",
    )
