"""A cluster and a person speaking to the running web process: HTTP only, tokens as Bearer.

Node names are the test's own, so that the tests of a module share one process without meeting.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from kube.keys import CLAIM
from tests.cluster_answers import (
    well_formed_bind,
    well_formed_filter,
    well_formed_preempt,
    well_formed_review,
    well_formed_scores,
)
from tests.servers.web import LiveApp

Manifest = dict[str, Any]
MI = 1 << 20


class ClusterClient:
    """`cluster` speaks as kube-scheduler and the API server do, each with the token of its scope, `person` with an
    admin's.
    """

    def __init__(self, cluster: httpx.Client, person: httpx.Client) -> None:
        self.cluster = cluster
        self.person = person

    def rest(self, method: str, path: str, body: Any = None, *, want: int = 200) -> Any:
        """JSON of a REST call that must end in this status."""
        response = self.person.request(method, f"/api/v1/{path}", json=body)
        assert response.status_code == want, response.text
        return response.json() if response.content else None

    def register(self, name: str, **inventory: Any) -> None:
        """PUT a node's inventory for the first time."""
        self.rest("PUT", f"nodes/{name}/inventory/", node_shape(name, **inventory), want=201)

    def claim(
        self, name: str, *, namespace: str = "research", devices: Manifest | None = None, **spec: Any
    ) -> Manifest:
        """POST a GpuClaim."""
        made: Manifest = self.rest("POST", "claims/", claim_shape(name, namespace, devices, **spec), want=201)
        return made

    def review(self, path: str, pod: Manifest, *, namespace: str = "research") -> Manifest:
        """The response of an AdmissionReview of a pod being created."""
        asked = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "operation": "CREATE",
                "namespace": namespace,
                "name": pod["metadata"]["name"],
                "userInfo": {"username": "jane"},
                "object": pod,
                "oldObject": None,
                "dryRun": False,
            },
        }
        answer = self.cluster.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        response = well_formed_review(answer.content)
        assert response["uid"] == "705ab4f5-6393"
        return response

    def filter(self, pod: Manifest, names: Sequence[str], **more: Any) -> Manifest:
        """ExtenderFilterResult."""
        return well_formed_filter(self._ask("filter", {"Pod": pod, "NodeNames": list(names), **more}))

    def chosen(self, pod: Manifest, names: Sequence[str]) -> str:
        """The one node that filter returns."""
        answer = self.filter(pod, names)
        assert answer["Error"] == ""
        assert len(answer["NodeNames"]) == 1, answer
        return str(answer["NodeNames"][0])

    def refusal(self, pod: Manifest, names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """(FailedNodes, FailedAndUnresolvableNodes) of a pod that no node takes."""
        answer = self.filter(pod, names)
        assert (answer["NodeNames"], answer["Error"]) == ([], "")
        return answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]

    def prioritize(self, pod: Manifest, names: Sequence[str]) -> dict[str, int]:
        """Node → score."""
        listed = well_formed_scores(self._ask("prioritize", {"Pod": pod, "NodeNames": list(names)}))
        return {entry["Host"]: entry["Score"] for entry in listed}

    def bind(self, pod: Manifest, node: str) -> str:
        """The Error of ExtenderBindingResult."""
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return well_formed_bind(self._ask("bind", body))

    def preempt(self, pod: Manifest, victims: dict[str, list[str]]) -> dict[str, Any]:
        """The nodes kept; `victims`: node → pod UIDs."""
        offered = {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for node, uids in victims.items()
        }
        return well_formed_preempt(self._ask("preempt", {"Pod": pod, "NodeNameToMetaVictims": offered}))

    def run(self, pod: Manifest, names: Sequence[str]) -> str:
        """Filter and bind; the node."""
        node = self.chosen(pod, names)
        assert self.bind(pod, node) == ""
        return node

    def allocation(self, pod: Manifest) -> Manifest:
        """The pod's newest allocation."""
        newest: Manifest = self.rest("GET", f"allocations/?pod_uid={pod['metadata']['uid']}")["results"][0]
        return newest

    def minors(self, pod: Manifest) -> list[int]:
        """Minors of what the pod holds."""
        return sorted(device["minor"] for device in self.allocation(pod)["devices"])

    def leases(self, node: str) -> dict[str, Manifest]:
        """Leases of a node's devices by name."""
        return {lease["name"]: lease for lease in self.rest("GET", f"leases/?node={node}&page_size=1000")["results"]}

    def used(self, node: str) -> list[tuple[int, int]]:
        """(core, bytes) used of each device by minor."""
        devices = self.rest("GET", f"nodes/{node}/")["inventory"]
        return [
            (device["core_used"], device["memory_used"]) for device in sorted(devices, key=lambda one: one["minor"])
        ]

    def _ask(self, verb: str, body: Any) -> bytes:
        answer = self.cluster.post(f"/extender/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.content


@contextmanager
def cluster_client(app: LiveApp) -> Iterator[ClusterClient]:
    """Both clients with tokens of fresh accounts."""
    with app.cluster() as cluster, app.client() as person:
        yield ClusterClient(cluster, person)


def node_shape(
    name: str,
    *,
    gpus: int = 2,
    memory: str = "80Gi",
    links: Sequence[Sequence[int]] | None = None,
    mode: str = "exclusive",
) -> Manifest:
    """A node of a scenario; every pair linked where nothing else is said."""
    return {
        "name": name,
        "mode": mode,
        "devices": [
            {"minor": minor, "type": "gpu", "uuid": f"GPU-{name}-{minor}", "model": "H100", "memory": memory, "numa": 0}
            for minor in range(gpus)
        ],
        "links": [[low, high, 18] for high in range(gpus) for low in range(high)] if links is None else list(links),
    }


def claim_shape(name: str, namespace: str, devices: Manifest | None, **spec: Any) -> Manifest:
    """A GpuClaim manifest, for one whole GPU where nothing else is said."""
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": devices or {"count": 1}, **spec},
    }


def pod_shape(
    name: str, *, namespace: str = "research", claim: str = "", resources: dict[str, str] | None = None, **spec: Any
) -> Manifest:
    """A pod as the API server has it, fields that we never read included."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"11111111-2222-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {CLAIM: claim} if claim else {},
        },
        "spec": {
            "schedulerName": "gpu-scheduler",
            "containers": [
                {"name": "main", "image": "cuda", "resources": {"limits": resources or {}}},
                {"name": "side", "image": "log", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "all"}]},
            ],
            "initContainers": [{"name": "load", "image": "cuda"}],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def patch_of(response: Manifest) -> list[Manifest]:
    """The JSONPatch of an admission response."""
    patch: list[Manifest] = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return patch
