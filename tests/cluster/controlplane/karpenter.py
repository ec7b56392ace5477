"""The real Karpenter with its KWOK provider: nodes for pods that wait, made and deleted by nobody else.

Used by the tests of growth. Invariants: it knows the instance types that `INSTANCES` names; nodes that it makes are
played by KWOK, like all others.
"""

import json
import os
from typing import Any

import yaml

from tests.cluster.controlplane.api import ApiRefused, Json
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import Program, free_ports, listens
from tests.cluster.controlplane.tools import PROGRAMS, program

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
ZONE, CAPACITY = "zone-a", "on-demand"
INSTANCES = {"h100-8": 8, "h100-4": 4, "cpu-only": 0}
"""Instance type → GPUs."""


def _instance(name: str, gpus: int) -> Json:
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [CAPACITY]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [ZONE]},
    ]
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    return {
        "name": name,
        "offerings": [{"Price": 1.0 + gpus, "Available": True, "Requirements": requirements}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": resources,
    }


class Karpenter:
    """One process over a control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.api = plane.api
        self._define()
        instances = plane.folder / "instances.json"
        instances.write_text(json.dumps([_instance(name, gpus) for name, gpus in INSTANCES.items()]))
        metrics, health = free_ports(2)
        environment = {
            **os.environ,
            "KUBECONFIG": str(plane.admin_kubeconfig),
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(metrics),
            "HEALTH_PROBE_PORT": str(health),
            "INSTANCE_TYPES_FILE_PATH": str(instances),
            "KUBERNETES_MIN_VERSION": "1.26.0",
        }
        self.program = Program(
            "karpenter",
            [program("karpenter")],
            folder=plane.folder,
            environment=lambda: environment,
            ready=lambda: listens(health),
        )

    def default_scheduler(self) -> Program:
        """The kube-scheduler of pods that name none, trigger pods among them: Karpenter goes by its verdict."""
        path = self.plane.folder / "default-scheduler.yaml"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {"kubeconfig": str(self.plane.admin_kubeconfig)},
                }
            )
        )
        return self.plane.scheduler(path, name="default-scheduler")

    def _define(self) -> None:
        for path in PROGRAMS["karpenter"].crds:
            body = yaml.safe_load(path.read_text())
            try:
                self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
            except ApiRefused as error:
                if error.code != 409:
                    raise

    def start(self) -> None:
        """Start it, with the node class that its pools name."""
        self.program.start()

    def stop(self) -> None:
        """Stop it; its objects stay."""
        self.program.stop()

    def accepts(self, pool: str) -> bool:
        """Whether it has marked the NodePool Ready; one that it was stopped over stays at `Unknown`."""
        found = self.api.get(f"{NODE_POOLS}/{pool}")
        conditions = {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", [])}
        return conditions.get("Ready") == "True"

    def node_class(self, name: str = "default", *, registers_after: str = "") -> None:
        """A node class that pools name. `registers_after`: how long its nodes take, such as 30s."""
        body: Json = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": name}}
        if registers_after:
            body["spec"] = {"nodeRegistrationDelay": registers_after}
        try:
            self.api.create(NODE_CLASSES, body)
        except ApiRefused as error:
            if error.code != 409:
                raise

    def pool(
        self,
        name: str,
        instance: str = "h100-8",
        *,
        shape: bool = True,
        weight: int | None = None,
        limits: dict[str, str] | None = None,
        node_class: str = "default",
        labels: dict[str, str] | None = None,
    ) -> None:
        """A NodePool of one instance type. `labels`: of its nodes."""
        said = {
            "gpu.scheduling/model": "H100",
            "gpu.scheduling/gpus": str(INSTANCES.get(instance, 8)),
            "gpu.scheduling/gpu-memory": "80Gi",
        }
        spec: dict[str, Any] = {
            "template": {
                "metadata": {"labels": labels or {}},
                "spec": {
                    "requirements": [
                        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance]},
                    ],
                    "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": node_class},
                    "expireAfter": "Never",
                },
            },
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5s"},
        }
        if weight is not None:
            spec["weight"] = weight
        if limits is not None:
            spec["limits"] = limits
        body = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name, "annotations": said if shape else {}},
            "spec": spec,
        }
        self.api.create(NODE_POOLS, body)

    def claims(self) -> list[Json]:
        """NodeClaims that there are."""
        return list(self.api.items(NODE_CLAIMS))
