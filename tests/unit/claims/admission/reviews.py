"""Builders of admission requests, and a small JSONPatch to see what a patch makes of a pod."""

import base64
import copy
import json
from typing import Any

from claims.admission.trust import Trust
from kube.admission import decode_review

US = "system:serviceaccount:gpuplane-system:gpuplane"
KOORD = "system:serviceaccount:koordinator-system:koord-scheduler"
USER = "jane"
TRUST = Trust(own=frozenset({US}), schedulers={"koordinator": frozenset({KOORD})})
CLAIM = {"gpu.scheduling/claim": "train"}
CUDA, NVIDIA = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"


def literal(name: Any, value: Any) -> Any:
    """An env entry."""
    return {"name": name, "value": value}


def review(
    obj: Any,
    *,
    old: Any = None,
    operation: Any = "CREATE",
    kind: Any = "Pod",
    user: Any = USER,
    sub_resource: Any = "",
    dry_run: Any = False,
) -> Any:
    """A decoded admission request about an object."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "operation": operation,
        "namespace": "team",
        "subResource": sub_resource,
        "userInfo": {"username": user, "groups": []},
        "object": obj,
        "oldObject": old,
        "dryRun": dry_run,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return decode_review(json.dumps(body).encode())


def pod(
    *,
    annotations: Any = None,
    labels: Any = None,
    requests: Any = None,
    env: Any = None,
    init: Any = (),
    more: Any = None,
    **spec: Any,
) -> Any:
    """A pod in manifest shape with one container, plus what `more` adds to the spec."""
    metadata: dict[str, Any] = {"name": "p", "namespace": "team"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    container: dict[str, Any] = {"name": "main", "image": "cuda"}
    if requests is not None:
        container["resources"] = {"limits": requests}
    if env is not None:
        container["env"] = env
    spec = {"containers": [container], **spec}
    if init:
        spec["initContainers"] = list(init)
    return {"metadata": metadata, "spec": spec | (more or {})}


def operations(response: Any) -> Any:
    """The JSONPatch operations of a response."""
    return json.loads(base64.b64decode(response.patch)) if response.patch else []


def patched(obj: Any, response: Any) -> Any:
    """The object as the API server would store it."""
    result = copy.deepcopy(obj)
    for operation in operations(response):
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        target = result
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            index = len(target) if last == "-" else int(last)
            if operation["op"] == "add":
                target.insert(index, operation["value"])
            elif operation["op"] == "replace":
                target[index] = operation["value"]
            else:
                del target[index]
        elif operation["op"] == "remove":
            del target[last]
        else:
            target[last] = operation["value"]
    return result
