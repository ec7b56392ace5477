"""The manifest of a reservation pod, which takes GPUs from a node's kubelet for pods of gpuplane (SHARE-3).

Pure: callers create the object themselves. Its shape follows KAI's reservation pods, so that tools for those read ours:
`spec.nodeName` is set, which bypasses every scheduler; the kubelet and its device plugin choose the GPUs; the program
inside (`python -m agent.reserve`) writes their UUIDs into the annotation `run.ai/reserve_for_gpu_index` of its own pod.

Invariants: the name depends on node and group alone, and two of them never share one; the pod satisfies the Pod
Security level `restricted`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kube.keys import KAI_GPU_GROUP_LABEL, NATIVE_GPU
from kube.names import LABEL_LONGEST, InvalidName, is_label_value

APP: Final = "gpuplane-reservation"
"""Value of the label `app` of every reservation pod."""
APP_LABEL: Final = "app"
SERVICE_ACCOUNT: Final = "gpuplane-reservation"
CONTAINER: Final = "reservation"
COMMAND: Final = ("python", "-m", "agent.reserve")
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
TOLERATE_ALL: Final[Sequence[Mapping[str, Any]]] = ({"operator": "Exists"},)
PREFIX: Final = "gpu-reservation-"
USER: Final = 10001
"""User and group of the container; any will do, the program reads files that are readable by all."""
MEMORY_LIMIT: Final = "128Mi"
"""The program takes under 20 MiB, and about 50 where it has to load NVML."""
GRACE_SECONDS: Final = 2
"""The program ends at once; this is for a signal that comes before it listens."""

_PLAIN_NODE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_PLAIN_GROUP: Final = re.compile(r"[a-z0-9]+")
_HASHED: Final = re.compile(r"x[0-9a-f]{20}")


def reservation_pod_name(node: str, group: str) -> str:
    """`gpu-reservation-<node>-<group>`, a DNS-1123 label.

    Where that is too long, no label (node names have dots) or ambiguous (a group with a `-`), the node is shortened and
    the group replaced by a hash of both.
    """
    plain = f"{PREFIX}{node}-{group}"
    is_unambiguous = _PLAIN_NODE.fullmatch(node) and _PLAIN_GROUP.fullmatch(group) and not _HASHED.fullmatch(group)
    if is_unambiguous and len(plain) <= LABEL_LONGEST:
        return plain
    hashed = "x" + hashlib.sha256(f"{node}/{group}".encode()).hexdigest()[:20]
    room = LABEL_LONGEST - len(PREFIX) - len(hashed) - 1
    readable = re.sub(r"[^a-z0-9]+", "-", node.lower())[:room].strip("-")
    return f"{PREFIX}{readable}-{hashed}" if readable else f"{PREFIX}{hashed}"


def reservation_pod(
    *,
    namespace: str,
    name: str,
    node: str,
    group: str,
    gpus: int,
    image: str,
    service_account: str = SERVICE_ACCOUNT,
    runtime_class: str = "",
    priority_class: str = "",
    pull_secrets: Sequence[str] = (),
    tolerations: Sequence[Mapping[str, Any]] = TOLERATE_ALL,
) -> dict[str, Any]:
    """The pod that takes `gpus` GPUs of the node for the group.

    Raises `InvalidName` where the group cannot be a label's value, ValueError for less than one GPU.
    """
    if not is_label_value(group):
        raise InvalidName("label-value", f"group {group[:LABEL_LONGEST]!r} cannot be the value of a label")
    if gpus < 1:
        raise ValueError(f"a reservation pod takes at least one GPU, not {gpus}")
    spec: dict[str, Any] = {
        "nodeName": node,
        "serviceAccountName": service_account,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": [dict(one) for one in tolerations],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(image, gpus)],
    }
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    if priority_class:
        spec["priorityClassName"] = priority_class
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {APP_LABEL: APP, KAI_GPU_GROUP_LABEL: group},
            "annotations": {DO_NOT_DISRUPT: "true"},
        },
        "spec": spec,
    }


def _container(image: str, gpus: int) -> dict[str, Any]:
    # a number of an extended resource is a limit, and the request is equal to it
    taken = {NATIVE_GPU: str(gpus)}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(COMMAND),
        "env": [
            _own("POD_NAME", "metadata.name"),
            _own("POD_NAMESPACE", "metadata.namespace"),
            # by which the program knows a new pod of the same name from its own
            _own("POD_UID", "metadata.uid"),
        ],
        "resources": {
            "limits": {**taken, "memory": MEMORY_LIMIT},
            "requests": {**taken, "cpu": "1m", "memory": "10Mi"},
        },
        # the program's last line is then in the pod's status
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _own(variable: str, field: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}}
