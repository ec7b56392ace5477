"""Speak to the extender as kube-scheduler does, without HTTP: bodies in, answers out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from allocations.extender import views
from kube.keys import CLAIM


def pod_manifest(
    name: str,
    *,
    namespace: str = "research",
    uid: str | None = None,
    claim: str | None = None,
    resources: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod that asks by a claim or by resources; `uid` defaults to `uid-<name>`."""
    noted = {**(annotations or {}), **({CLAIM: claim} if claim else {})}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "annotations": noted},
        "spec": {"containers": [{"name": "main", "resources": {"limits": dict(resources or {})}}], **spec},
    }


def filter_answer(pod: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    """ExtenderFilterResult for names."""
    answer: dict[str, Any] = json.loads(views.filter(json.dumps({"Pod": pod, "NodeNames": list(nodes)}).encode()))
    return answer


def filtered(pod: Mapping[str, Any], nodes: Iterable[str]) -> str | None:
    """The node that filter chose, None for a refusal."""
    answer = filter_answer(pod, nodes)
    assert answer["Error"] == ""
    return answer["NodeNames"][0] if answer["NodeNames"] else None


def bound(pod: Mapping[str, Any], node: str | None) -> str:
    """The Error of bind to the node that filter chose, empty for success."""
    assert node is not None, "filter refused the pod"
    meta = pod["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    error: str = json.loads(views.bind(json.dumps(body).encode()))["Error"]
    return error
