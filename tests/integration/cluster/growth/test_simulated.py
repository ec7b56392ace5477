"""The growth loop against the simulator's cluster over HTTP: its watches, its rounds, its make-believe Karpenter.

What `make run` shows, with shorter times: a node is asked for, launched, registered, ready, served, and gone again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_django import Settings

from access.actors import SYSTEM
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.extender import views
from allocations.models import Allocation
from allocations.reconcile import reconcile, verify_devices
from allocations.waiting import is_waiting, note_waiting
from audit.requeue_notify import announcer
from autoscaling import watching
from autoscaling.choices import ACTIVE
from autoscaling.models import NodeClaim, ScalingRequest, Trigger
from autoscaling.rounds.run import Rounds
from gpuplane.start.definitions import install
from kube import karpenter as kube_karpenter
from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.crds import CustomObject
from kube.keys import CLAIM, PODS_RESOURCE
from kube.objects import Pod
from kube.resources import GPU_CLAIMS, NODE_CLAIMS, NODE_POOLS, PODS
from kube.watch import Relisted, Stop
from nodes.cluster import follow_all
from nodes.inventory import parse_node
from nodes.models import Device
from nodes.services import inventory_put
from simulator.cluster.kinds import NODES, Object
from simulator.cluster.kinds import PODS as POD_KIND
from simulator.default_scheduler import run_default_scheduler
from simulator.karpenter.controller import Karpenter
from simulator.karpenter.lifecycle import is_ready
from simulator.karpenter.pools import INSTANCES, POOLS, taint_of
from simulator.kubelets import run_kubelets
from simulator.node_agents import node_of
from simulator.pod_writes import pod_delete, unschedulable_write
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.integration.cluster.conftest import NAMESPACE, bound_by_the_door
from tests.servers.simulated_cluster import SimulatedCluster, simulated_cluster

PATIENCE_SECONDS = 60
QUICK = {
    name: msgspec.structs.replace(one, launch=(0.2, 0.2), register=(0.6, 0.6), ready=(0.4, 0.4), scarce=0)
    for name, one in INSTANCES.items()
}


class Shown:
    """The simulated cluster, gpuplane's loop and watches, and the users."""

    def __init__(self, simulated: SimulatedCluster, cluster: Cluster, instances: dict[str, Any]) -> None:
        self.simulated = simulated
        self.cluster = cluster
        self.rounds = Rounds(cluster)
        self.karpenter = Karpenter(simulated.store, rng=random.Random(7), instances=instances)
        pools = [msgspec.json.decode(msgspec.json.encode(pool)) for pool in POOLS]
        for pool in pools:
            pool["spec"]["disruption"]["consolidateAfter"] = "1s"
        simulated.run(lambda: self.karpenter.install(pools))
        assert install(Stop()) == set()
        for name, devices in (("half", {"count": 1, "core": 50, "memoryRatio": 50}), ("eight", {"count": 8})):
            body = {"metadata": {"name": name}, "spec": {"devices": {**devices, "model": ["B200"]}}}
            cluster.create(GPU_CLAIMS.path(namespace=NAMESPACE), body, CustomObject)

    def pods(self, count: int, claim: str) -> list[Object]:
        """Pods that kube-scheduler finds no node for."""
        store = self.simulated.store
        counted = {PODS_RESOURCE: "1"}  # as the webhook adds it: Karpenter makes nothing for the pod by itself
        spec = {
            "containers": [{"name": "main", "image": "x", "resources": {"requests": counted, "limits": counted}}],
            "tolerations": [{**taint_of("burst"), "operator": "Equal"}],
        }

        def make(number: int) -> Object:
            meta = {"name": f"{claim}-{number}", "annotations": {CLAIM: claim}}
            pod = store.create(POD_KIND, NAMESPACE, {"metadata": meta, "spec": spec})
            unschedulable_write(store, pod, why="0/0 nodes are available.", by="gpu-scheduler")
            return pod

        return [self.simulated.run(partial(make, number)) for number in range(count)]

    def step(self) -> None:
        """The cluster's controllers, the agents of new nodes, gpuplane's watches, and a round of the loop."""
        self.simulated.run(self._controllers)
        for node in self.simulated.run(lambda: [one for one in self.simulated.store.list(NODES) if is_ready(one)]):
            name = node["metadata"]["name"]
            if not Device.objects.filter(node__name=name).exists():
                inventory_put(shape=parse_node(node_of(node).inventory()), actor=SYSTEM, now=database_now())
                verify_devices(backends=current_backends(), now=database_now())
        now = database_now()
        pools = self.cluster.list(NODE_POOLS.path(), kube_karpenter.NodePool).items
        watching.handle_pool(Relisted({one.key: one for one in pools}, ""), now=now)
        claims = self.cluster.list(NODE_CLAIMS.path(), kube_karpenter.NodeClaim).items
        watching.handle_claim(Relisted({one.key: one for one in claims}, ""), now=now)
        note_waiting([pod for pod in self.cluster.list(PODS.path(), Pod).items if is_waiting(pod)], now)
        follow_all(machines=kube_nodes.list_all(self.cluster).items, now=now)
        self.rounds.run()

    def _controllers(self) -> None:
        run_kubelets(self.simulated.store)
        run_default_scheduler(self.simulated.store)
        self.karpenter.run()

    def schedule(self) -> None:
        """kube-scheduler asks for every pod that waits."""
        names = [node.name for node in kube_nodes.list_all(self.cluster).items]
        for pod in self.cluster.list(PODS.path(namespace=NAMESPACE), Pod).items:
            if pod.spec.node_name or not names:
                continue
            body = msgspec.json.encode({"Pod": pod, "NodeNames": names})
            passed = msgspec.json.decode(views.filter(body)).get("NodeNames")
            if passed:
                assert bound_by_the_door([(pod.metadata.name, pod.metadata.uid, passed[0])]) == [""]

    def until(self, holds: Any, *, scheduling: bool = True) -> None:
        """Steps until that holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, list(Trigger.objects.values_list("state", "reason", "said"))
            self.step()
            if scheduling:
                self.schedule()

    def end(self, pods: list[Object]) -> None:
        """Their users delete them; the watch releases what they held."""
        for pod in pods:
            self.simulated.run(partial(pod_delete, self.simulated.store, pod))


@pytest.fixture
def instances() -> dict[str, Any]:
    return QUICK


@pytest.fixture
def shown(
    instances: dict[str, Any], ledger_db: TestDatabase, redis_url: str, tmp_path: Path, settings: Settings
) -> Iterator[Shown]:
    """Everything, empty."""
    del ledger_db
    with simulated_cluster(tmp_path) as simulated:
        settings.GPUPLANE_KUBECONFIG = str(simulated.kubeconfig)
        settings.GPUPLANE_REDIS_URL = redis_url
        settings.GPUPLANE_SCALE_AFTER_SECONDS = 0
        cluster = current_backends().cluster
        assert cluster is not None
        yield Shown(simulated, cluster, instances)
        cluster.close()
        announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL).close()


def test_from_zero_to_served_and_gone_again(shown: Shown) -> None:
    """SCALE-1 SCALE-2 SCALE-3 SCALE-4 SCALE-5 Sixteen halves: one request, one node, all bound; then the node goes."""
    pods = shown.pods(16, "half")
    shown.until(lambda: is_served(16))
    (request,) = ScalingRequest.objects.all()
    (trigger,) = Trigger.objects.all()
    assert (request.pool, request.state, trigger.state, trigger.gpus) == ("b200-spot", "served", "served", 8)
    (claim,) = NodeClaim.objects.all()
    assert claim.launched_at is not None
    assert claim.registered_at is not None
    assert claim.ready_at is not None
    assert claim.inventory_at is not None
    assert claim.created_at <= claim.launched_at <= claim.registered_at <= claim.ready_at
    bound = [pod.spec.node_name for pod in shown.cluster.list(PODS.path(namespace=NAMESPACE), Pod).items]
    assert set(bound) == {claim.node}
    assert shown.cluster.list(PODS.path(namespace="gpuplane-system"), Pod).items == [], "no trigger pod is left"
    shown.end(pods)
    shown.until(lambda: reconcile(backends=current_backends(), now=database_now()) and not live(), scheduling=False)
    shown.until(lambda: NodeClaim.objects.filter(deleted_at__isnull=True).count() == 0, scheduling=False)
    assert kube_nodes.list_all(shown.cluster).items == []
    assert ScalingRequest.objects.count() == 1, "nobody was planned for twice"


@pytest.mark.parametrize("instances", [QUICK | {"b200-spot": msgspec.structs.replace(QUICK["b200-spot"], scarce=10)}])
def test_a_pool_without_capacity_gives_way_to_another(shown: Shown) -> None:
    """SCALE-4 What Karpenter says is the reason of the request that failed; the other pool serves the pod."""
    shown.pods(1, "eight")
    shown.until(lambda: is_served(1))
    failed, served = ScalingRequest.objects.order_by("pk")
    assert (failed.pool, failed.state, served.pool, served.state) == ("b200-spot", "failed", "b200", "served")
    assert "InsufficientCapacity: no spot capacity" in failed.reason


def is_served(pods: int) -> bool:
    """Whether so many are bound, and nothing is under way any more."""
    bound = Allocation.objects.filter(state=State.BOUND).count()
    return bound == pods and not ScalingRequest.objects.filter(state__in=ACTIVE).exists()


def live() -> int:
    """Allocations that hold something."""
    return Allocation.objects.filter(state__in=LIVE).count()
