"""A make-believe Karpenter on the stand-in API server, one step at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.conf import settings

from kube.keys import COMPONENT_LABEL, IN_USE_LABEL, NODEPOOL_LABEL
from tests.fakes.apikinds import CRDS, EVENTS, NODES, PODS, Object
from tests.fakes.apiserver import ApiServer

MERGE = "application/merge-patch+json"


def crd(plural: str, kind: str) -> Object:
    """A definition that takes anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "metadata": {"name": f"{plural}.karpenter.sh"},
        "spec": {
            "group": "karpenter.sh",
            "scope": "Cluster",
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def node_pool(
    name: str, gpus: int = 8, *, weight: int = 0, limits: dict[str, str] | None = None, **spec: Any
) -> Object:
    """A NodePool of H100 nodes, by its annotations. `gpus` 0: without a shape."""
    said = {"gpu.scheduling/model": "H100", "gpu.scheduling/gpus": str(gpus), "gpu.scheduling/gpu-memory": "80Gi"}
    template = {"metadata": {"labels": spec.pop("labels", {})}, "spec": spec}
    return {
        "metadata": {"name": name, "annotations": said if gpus else {}},
        "spec": {"template": template, "weight": weight or None, "limits": limits or {}},
    }


class Karpenter:
    """What Karpenter does, when it is told to."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.made = 0
        for plural, kind in (("nodepools", "NodePool"), ("nodeclaims", "NodeClaim")):
            server.store.create(CRDS, "", crd(plural, kind))
        self.pools = server.store.kind_of("karpenter.sh", "v1", "nodepools")
        self.claims = server.store.kind_of("karpenter.sh", "v1", "nodeclaims")
        server.add_namespace(settings.GPUPLANE_NAMESPACE)

    def pool(self, name: str = "h100", gpus: int = 8, **about: Any) -> None:
        """Make a NodePool."""
        self.server.store.create(self.pools, "", node_pool(name, gpus, **about))

    def not_ready(self, name: str = "h100") -> None:
        """Say that a NodePool is not Ready."""
        condition = {"type": "Ready", "status": "False", "reason": "NodeClassNotReady", "message": "no subnets"}
        status: Object = {"conditions": [condition]}
        self.server.store.patch(self.pools, "", name, {"status": status}, content_type=MERGE, subresource="status")

    def triggers(self) -> list[Object]:
        """The trigger pods that are there, by name."""
        return [
            pod
            for (namespace, _), pod in sorted(self.server.pods.items())
            if namespace == settings.GPUPLANE_NAMESPACE and pod["metadata"].get("labels", {}).get(COMPONENT_LABEL)
        ]

    def nominate(self, pod: Object, *, says: bool = True) -> str:
        """A NodeClaim for a trigger pod; its name. `says`: whether an event on the pod says so."""
        self.made += 1
        pool = pod["spec"]["nodeSelector"][NODEPOOL_LABEL]
        name = f"{pool}-{self.made}"
        self.server.store.create(self.claims, "", {"metadata": {"name": name, "labels": {NODEPOOL_LABEL: pool}}})
        if not says:
            return name
        meta = pod["metadata"]
        about = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        event = {
            "metadata": {"name": f"{meta['name']}.{self.made}", "namespace": meta["namespace"]},
            "involvedObject": about,
            "reason": "Nominated",
            "message": f"Pod should schedule on: nodeclaim/{name}",
            "type": "Normal",
        }
        self.server.store.create(EVENTS, meta["namespace"], event)
        return name

    def step(self, claim: str, *conditions: str) -> None:
        """Conditions of a NodeClaim become true; Registered makes its node."""
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        now = [{"type": kind, "status": "True", "lastTransitionTime": moment} for kind in conditions]
        status: Object = {"conditions": now}
        if "Registered" in conditions:
            status["nodeName"] = claim
            if claim not in self.server.nodes:
                self.server.add_node(claim, labels={NODEPOOL_LABEL: claim.rpartition("-")[0]})
        self.server.store.patch(self.claims, "", claim, {"status": status}, content_type=MERGE, subresource="status")

    def ready(self, claim: str) -> None:
        """All steps."""
        self.step(claim, "Launched", "Registered", "Initialized", "Ready")

    def bind(self, pod: Object, node: str) -> None:
        """kube-scheduler binds a trigger pod."""
        meta = pod["metadata"]
        self.server.store.patch(PODS, meta["namespace"], meta["name"], {"spec": {"nodeName": node}}, content_type=MERGE)

    def is_in_use(self, node: str) -> bool:
        """Whether the node has the label that keeps triggers off."""
        labels = self.server.store.get(NODES, "", node)["metadata"].get("labels", {})
        return bool(labels.get(IN_USE_LABEL) == "true")
