"""What kube-scheduler and the API server send, in the sizes that they send it in.

Used by `over_http`. A pod carries what a real one does after defaulting (tolerations, volumes, probes,
managedFields): about 4 kB. A Node object is about 8 kB (labels, conditions, 50 images).
"""

from __future__ import annotations

import random
from typing import Any

import orjson

from kube.keys import CLAIM

NAMESPACE = "research"
CLAIMS: dict[str, dict[str, Any]] = {
    "one": {"devices": {"count": 1}},
    "notebook": {"devices": {"count": 1, "core": 50, "memoryRatio": 25}},
    "four": {"devices": {"count": 4, "policy": "contiguous"}},
    "node": {"devices": {"count": 8}},
}
"""The mix of the filter's figures, by claim name."""
MIX = ("one", "one", "notebook", "one", "four", "one", "notebook", "one", "one", "node")


def pod(name: str, claim: str) -> dict[str, Any]:
    """A pod as the scheduler has it in its cache."""
    labels = {"app.kubernetes.io/name": "train", "app.kubernetes.io/instance": name, "team": "research", "run": name}
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "cache", "mountPath": "/root/.cache"},
        {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
    ]
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"{abs(hash(name)) % 10**12:012d}-{name}",
            "resourceVersion": "884213",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": {CLAIM: claim, "prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "4f1f…", "controller": True}
            ],
            "managedFields": [_managed("kube-controller-manager", labels)],
        },
        "spec": {
            "volumes": [
                {"name": "data", "hostPath": {"path": "/mnt/data", "type": "Directory"}},
                {"name": "cache", "emptyDir": {"sizeLimit": "20Gi"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            ],
            "containers": [
                {
                    "name": container,
                    "image": f"registry.example.com/research/{container}:2026.1",
                    "command": ["python", "-m", "train", "--config", "/data/config.yaml"],
                    "env": [
                        {"name": f"NCCL_{key}", "value": "1"} for key in ("DEBUG", "IB_HCA", "SOCKET_IFNAME", "P2P")
                    ],
                    "resources": {
                        "limits": {"cpu": "16", "memory": "128Gi"},
                        "requests": {"cpu": "16", "memory": "128Gi"},
                    },
                    "volumeMounts": mounts,
                    "livenessProbe": probe,
                    "readinessProbe": probe,
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
                for container in ("main", "sidecar")
            ],
            "restartPolicy": "Never",
            "schedulerName": "gpu-scheduler",
            "serviceAccountName": "default",
            "priority": 0,
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "nvidia.com/gpu")
            ],
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def _managed(manager: str, labels: dict[str, str]) -> dict[str, Any]:
    owned: dict[str, Any] = {f"f:{key}": {} for key in labels}
    container: dict[str, Any] = {
        f"f:{key}": {} for key in ("command", "env", "image", "imagePullPolicy", "name", "resources")
    }
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, **owned}},
            "f:spec": {"f:containers": {'k:{"name":"main"}': container, 'k:{"name":"sidecar"}': container}},
        },
    }


def name_lists(names: list[str], *, seed: int = 7) -> list[bytes]:
    """`NodeNames` as kube-scheduler's parallel filters leave it: never twice in one order, now and then short of some.

    Eight arrays of JSON; in every second one a hundredth of the nodes is missing, as if other filters had
    refused them.
    """
    chance = random.Random(seed)
    lists = []
    for number in range(8):
        turn = chance.randrange(len(names))
        turned = names[turn:] + names[:turn]
        for place in range(0, len(turned) - 16, 16):
            block = turned[place : place + 16]
            chance.shuffle(block)
            turned[place : place + 16] = block
        if number % 2:
            missing = set(chance.sample(turned, max(len(turned) // 100, 1)))
            turned = [name for name in turned if name not in missing]
        lists.append(orjson.dumps(turned))
    return lists


def names_body(one: dict[str, Any], names: bytes) -> bytes:
    """ExtenderArgs with names."""
    return b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (orjson.dumps(one), names)


def nodes_body(one: dict[str, Any], nodes: bytes) -> bytes:
    """ExtenderArgs with whole objects; `nodes` is a NodeList."""
    return b'{"Pod":%s,"Nodes":%s,"NodeNames":null}' % (orjson.dumps(one), nodes)


def node_list(names: list[str]) -> bytes:
    """A NodeList of whole Node objects."""
    return orjson.dumps({"metadata": {}, "items": [node(name) for name in names]})


def node(name: str) -> dict[str, Any]:
    """A Node as the API server has it."""
    amounts = {"cpu": "128", "memory": "2113Gi", "pods": "250", "ephemeral-storage": "3500Gi", "nvidia.com/gpu": "8"}
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says about {kind} what it always says",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {
            "names": [
                f"registry.example.com/team/image-{number}@sha256:{number:064x}",
                f"registry.example.com/team/image-{number}:1",
            ],
            "sizeBytes": 10**9 + number,
        }
        for number in range(36)
    ]
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(20)}
    return {
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {"podCIDR": "10.1.0.0/24", "providerID": f"metal://{name}"},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images},
    }


def bind_body(one: dict[str, Any], node_name: str) -> bytes:
    """ExtenderBindingArgs."""
    meta = one["metadata"]
    return orjson.dumps(
        {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node_name}
    )


def review_body(one: dict[str, Any]) -> bytes:
    """AdmissionReview for the creation of a pod."""
    return orjson.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": one["metadata"]["uid"],
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": NAMESPACE,
                "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:kube-system:job-controller", "groups": []},
                "object": {"apiVersion": "v1", "kind": "Pod", **one},
                "oldObject": None,
                "dryRun": False,
                "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            },
        }
    )
