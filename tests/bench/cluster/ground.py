"""The cluster on which all contenders run, one after the other: nodes that stay, pods that come and go, webhooks when
they are asked for.

Used by the contenders. Invariants: when a contender is done no pod, Lease, event or claim of its run is left, and the
webhooks are there only while the gpuplane that answers them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import ApiRefused
from tests.cluster.controlplane.gpuplane import Doors, Gpuplane
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import inventory, node, pod, two_islands
from tests.cluster.controlplane.program import Program, free_ports
from tests.cluster.controlplane.stack import LEASES, SERVICE_ACCOUNTS, Stack, eventually

Json = dict[str, Any]
NAMESPACE = "bench"
GPUS = 8
CLIENT = {"qps": 5000, "burst": 10000}
"""clientConnection of every scheduler: none of them waits for its own limiter."""
MANAGER = ["--node-monitor-grace-period=300s", "--kube-api-qps=2000", "--kube-api-burst=4000"]
"""Over its own flags, the last of which count: no node is lost because its kubelet waits for a core, and DRA's claims
come and go faster.
"""
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
OURS = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Dgpuplane"
DEFAULTS = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {{leaderElect: false}}
clientConnection: {{kubeconfig: {kubeconfig!r}, qps: {qps}, burst: {burst}}}
"""


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_transition_time: str = ""


class _Meta(msgspec.Struct):
    name: str = ""
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] = []
    resource_claim_statuses: list[msgspec.Raw] = []


class PodFound(msgspec.Struct):
    """As much of a pod as is looked at."""

    metadata: _Meta
    spec: _Spec
    status: _Status


class _Pods(msgspec.Struct):
    items: list[PodFound]


class BenchStack(Stack):
    """The tests' stack with a scheduler that is never held back by its own client's limits."""

    def values(self, doors: Doors, *, scope: str = "everywhere") -> Json:
        """The chart's values."""
        told = super().values(doors, scope=scope)
        told["scheduler"]["clientConnection"] = CLIENT
        return told


class Ground:
    """The cluster of a run; `folder` is short, since sockets are made below it."""

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self.plane = ControlPlane(folder)
        self.plane.manager.command += MANAGER
        self.stack = BenchStack(self.plane, folder)
        self.api = self.plane.api
        self.folder = folder
        self.nodes = [f"node-{number:04d}" for number in range(nodes)]
        self.scheduler: Program | None = None
        self._webhooks: list[Json] = []

    # once

    def start(self) -> None:
        """The control plane, the chart's objects, and the nodes, ready: eight GPUs in two islands each, as a device
        plugin says it.
        """
        self.plane.start()
        self.stack.install()
        rendered = chart.render(self.stack.values(self.stack.doors))
        self._webhooks = chart.of_kinds(rendered, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        self.plane.namespace(NAMESPACE)
        self.webhooks(on=False)
        self.for_each(self.nodes, lambda name: self.api.create("/api/v1/nodes", node(name, native=GPUS)))
        eventually(lambda: self._ready("nvidia.com/gpu"), seconds=300, what="every node ready")

    def register(self, gpuplane: Gpuplane) -> None:
        """Tell a new installation what the nodes have; returns when they show it."""

        def tell(name: str) -> None:
            body = inventory(name, gpus=GPUS, links=two_islands(GPUS))
            answer = gpuplane.rest.put(f"/api/v1/nodes/{name}/inventory/", json=body)
            assert answer.status_code in {200, 201}, answer.text

        self.for_each(self.nodes, tell)
        eventually(lambda: self._ready("kubernetes.io/gpu"), seconds=300, what="every node's devices advertised")

    def stop(self) -> None:
        """Everything, for good."""
        self.stop_scheduler()
        self.stack.close()
        self.plane.stop()

    # for one contender

    def webhooks(self, *, on: bool) -> None:
        """Put gpuplane's webhooks there, or take them away; returns when the API server follows."""
        if on:
            self.api.apply(*self._webhooks)
        else:
            for one in self._webhooks:
                self.api.delete(f"{WEBHOOKS}/{one['kind'].lower()}s/{one['metadata']['name']}")
        probe = pod("probe", NAMESPACE, resources={"nvidia.com/gpu": 1})

        def follows() -> bool:
            try:
                made = self.api.create(f"{PODS}?dryRun=All", probe)
            except ApiRefused:
                return False  # they are asked, and nobody answers
            return ("env" in made["spec"]["containers"][0]) == on

        eventually(follows, seconds=60, what=f"webhooks {'asked' if on else 'no longer asked'}")

    def add_pods(self, bodies: Sequence[Json]) -> None:
        """Create them, several at once."""
        self.for_each(bodies, lambda body: self.api.create(PODS, body))

    def start_stock_scheduler(self) -> Program:
        """kube-scheduler with its own defaults."""
        path = self.folder / "scheduler-defaults.yaml"
        path.write_text(DEFAULTS.format(kubeconfig=str(self.plane.scheduler_kubeconfig), **CLIENT))
        self.scheduler = self.plane.scheduler(path)
        self.scheduler.start()
        return self.scheduler

    def start_extended_scheduler(self, *, extender_port: int | None = None) -> Program:
        """kube-scheduler with the chart's configuration; `extender_port`: asks another than gpuplane."""
        doors = self.stack.doors if extender_port is None else replace(self.stack.doors, extender=extender_port)
        self.scheduler = self.stack.start_scheduler(doors)
        return self.scheduler

    def stop_scheduler(self) -> None:
        """Stop it for good."""
        if self.scheduler is not None:
            self.plane.forget_scheduler(self.scheduler)
            self.scheduler = self.stack.scheduler = None

    def empty(self) -> None:
        """Delete every pod and its events; returns when they are gone."""
        self._delete_all(PODS)
        self._delete_all(EVENTS)

    def _delete_all(self, path: str) -> None:
        """A collection of thousands, with everybody who watches it: the API server takes longer than one
        request waits.
        """

        def gone() -> bool:
            with suppress(httpx.ReadTimeout):
                self.api.delete(path, grace_seconds=0)
            return not self.api.items(f"{path}?limit=1")

        eventually(gone, seconds=300, what=f"nothing left of {path}")

    def drop_leases(self) -> None:
        """Delete the Leases that the constant extender made."""
        self.api.delete(f"{LEASES}?{OURS}")

    # looking

    def pods(self) -> list[PodFound]:
        """All of them, as stored."""
        answer = self.api.http.get(PODS)
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=_Pods).items

    def gpuplane_token(self) -> str:
        """The credential of the web processes' ServiceAccount, for one that writes as they do."""
        return self.plane.service_account_token(chart.NAMESPACE, SERVICE_ACCOUNTS["web"])

    def free_port(self) -> int:
        """One that nobody listens on."""
        return free_ports(1)[0]

    def for_each(self, things: Iterable[Any], act: Any) -> None:
        """Eight at once."""
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(act, things):
                pass

    def _ready(self, resource: str) -> bool:
        there = {one["metadata"]["name"] for one in self.api.items("/api/v1/nodes") if _usable(one, resource)}
        return there >= set(self.nodes)


def _usable(found: Mapping[str, Any], resource: str) -> bool:
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"].get("conditions", ()))
    return ready and resource in found["status"].get("allocatable", {}) and not found["spec"].get("taints")
