"""The objects that tests put into the cluster: nodes with their devices, pods, claims; and how KWOK plays the
kubelet.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

Json = dict[str, Any]
Links = Sequence[tuple[int, int, int]]
CLAIM = "gpu.scheduling/claim"
SCHEDULER = "gpu-scheduler"
GIB = 2**30
KUBELET_PREFIX = "kubelet-"
"""Pods on nodes whose name begins so are left to `controlplane/kubelet.py`; KWOK only keeps the nodes ready."""


def all_linked(count: int, links: int = 18) -> Links:
    """Every GPU reaches every other over `links` NVLinks."""
    return [(low, high, links) for low, high in combinations(range(count), 2)]


def two_islands(count: int = 8, links: int = 4) -> Links:
    """Two halves, linked within and not between."""
    half = count // 2
    parts = (range(half), range(half, count))
    return [(low, high, links) for part in parts for low, high in combinations(part, 2)]


def node(name: str, *, native: int = 0, labels: Mapping[str, str] | None = None) -> Json:
    """A Node object as a kubelet registers it; `native`: what a device plugin would say of `nvidia.com/gpu`."""
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "250"}
    if native:
        amounts["nvidia.com/gpu"] = str(native)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"capacity": amounts, "allocatable": amounts, "nodeInfo": {"kubeletVersion": "kwok"}},
    }


def inventory(
    name: str,
    *,
    gpus: int = 8,
    model: str = "H100",
    memory: str = "80Gi",
    links: Links | None = None,
    sick: Iterable[int] = (),
    nics: int = 0,
) -> Json:
    """What `PUT /api/v1/nodes/<name>/inventory/` is told: GPUs two a PCIe switch, half of them on each NUMA node."""
    unwell = set(sick)
    devices: list[Json] = [
        {
            "minor": minor,
            "type": "gpu",
            "uuid": f"GPU-{name}-{minor}",
            "model": model,
            "memory": memory,
            "numa": minor * 2 // max(gpus, 2),
            "pcie": f"0000:{minor // 2:02x}",
            "healthy": minor not in unwell,
        }
        for minor in range(gpus)
    ]
    devices += [
        {"minor": minor, "type": "rdma", "uuid": f"NIC-{name}-{minor}", "pcie": f"0000:{minor:02x}", "healthy": True}
        for minor in range(nics)
    ]
    linked = all_linked(gpus) if links is None else links
    return {"name": name, "devices": devices, "links": [list(link) for link in linked]}


def claim(name: str, namespace: str, **spec: Any) -> Json:
    """A GpuClaim; keywords are its spec's fields (`devices={"count": 2, "policy": "contiguous"}`)."""
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"count": 1}, **spec},
    }


def pod(
    name: str,
    namespace: str,
    *,
    claimed: str = "",
    resources: Mapping[str, str | int] | None = None,
    scheduler: str = SCHEDULER,
    annotations: Mapping[str, str] | None = None,
    containers: int = 1,
    **spec: Any,
) -> Json:
    """A pod that asks by claim or by resource names. Keywords are further fields of its spec."""
    told = {**({CLAIM: claimed} if claimed else {}), **(annotations or {})}
    amounts = {key: str(value) for key, value in (resources or {}).items()}
    first: Json = {"name": "main", "image": "registry.example/work:1"}
    if amounts:
        first["resources"] = {"requests": amounts, "limits": amounts}
    more = [{"name": f"more-{number}", "image": "registry.example/work:1"} for number in range(1, containers)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": told, "labels": {"made-by": "cluster-tests"}},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 1,
            "containers": [first, *more],
            **spec,
        },
    }


def priority_class(name: str, value: int) -> Json:
    """A PriorityClass that may preempt."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "globalDefault": False,
        "description": "of the cluster tests",
    }


STAGES = """\
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
      - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      {{ range NodeConditions }}
      - lastHeartbeatTime: {{ $now | Quote }}
        lastTransitionTime: {{ $now | Quote }}
        message: {{ .message | Quote }}
        reason: {{ .reason | Quote }}
        status: {{ .status | Quote }}
        type: {{ .type | Quote }}
      {{ end }}
      addresses:
      - {address: 127.0.0.1, type: InternalIP}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-running}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Pending]}
      - {key: .spec.nodeName, operator: Exists}
      - {key: '.spec.nodeName | select( . != null ) | select( startswith("kubelet-") )', operator: DoesNotExist}
  next:
    statusTemplate: |
      {{ $now := Now }}
      phase: Running
      startTime: {{ $now | Quote }}
      podIP: 127.0.0.1
      conditions:
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Initialized}
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Ready}
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: ContainersReady}
      containerStatuses:
      {{ range .spec.containers }}
      - image: {{ .image | Quote }}
        name: {{ .name | Quote }}
        ready: true
        restartCount: 0
        state: {running: {startedAt: {{ $now | Quote }}}}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ends}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
      - {key: '.metadata.annotations["cluster-tests/ends-after"]', operator: Exists}
  delay:
    durationMilliseconds: 0
    durationFrom: {expressionFrom: '.metadata.annotations["cluster-tests/ends-after"]'}
  next:
    statusTemplate: |
      phase: Succeeded
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-deleted}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: Exists}
      - {key: '.spec.nodeName | select( . != null ) | select( startswith("kubelet-") )', operator: DoesNotExist}
  next:
    finalizers: {empty: true}
    delete: true
"""
"""How KWOK plays the kubelet: nodes become ready, bound pods run, those told how long end, deleted ones go."""
