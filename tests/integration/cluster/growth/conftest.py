"""gpuplane with a make-believe Karpenter, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from access.actors import SYSTEM
from allocations.reconcile import verify_devices
from allocations.waiting import is_waiting, note_waiting
from autoscaling import watching
from autoscaling.models import NodeClaim, PodGrowth, ScalingRequest, Trigger
from autoscaling.rounds import run
from autoscaling.rounds.run import Rounds
from kube import karpenter as kube_karpenter
from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.keys import CLAIM
from kube.objects import Pod
from kube.resources import NODE_CLAIMS, NODE_POOLS, PODS
from kube.watch import Relisted
from nodes.cluster import follow_all
from nodes.inventory import parse_node
from nodes.services import inventory_put
from storage.clock import database_now
from tests.fakes.apikinds import Object
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.growth.karpenter import Karpenter


class Growing:
    """Users, Karpenter and gpuplane's loop; `later`: how far ahead the clock is."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.server = world.server
        self.karpenter = Karpenter(world.server)
        self.later = timedelta(0)
        monkeypatch.setattr(run, "database_now", self.now)
        self.rounds: Rounds | None = None

    @property
    def cluster(self) -> Cluster:
        """The API server, as gpuplane reaches it."""
        assert self.world.backends.cluster is not None
        return self.world.backends.cluster

    def now(self) -> datetime:
        """The time of the loop."""
        return database_now() + self.later

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.later += timedelta(seconds=seconds)

    def pods(self, count: int, name: str = "p", *, claim: str = "half", **options: Any) -> list[str]:
        """Pods that kube-scheduler called unschedulable."""
        made = []
        for number in range(count):
            named = f"{name}-{number}"
            self.server.add_pod(named, namespace=NAMESPACE, annotations={CLAIM: claim}, **options)
            self.world.refuse(named, message="0/0 nodes are available")
            made.append(named)
        return made

    def watch(self) -> None:
        """All watches see everything."""
        cluster, now = self.cluster, self.now()
        pools = cluster.list(NODE_POOLS.path(), kube_karpenter.NodePool).items
        watching.handle_pool(Relisted({one.key: one for one in pools}, ""), now=now)
        claims = cluster.list(NODE_CLAIMS.path(), kube_karpenter.NodeClaim).items
        watching.handle_claim(Relisted({one.key: one for one in claims}, ""), now=now)
        pods = cluster.list(PODS.path(), Pod).items
        note_waiting([pod for pod in pods if is_waiting(pod)], now)
        follow_all(machines=kube_nodes.list_all(cluster).items, now=now)

    def round(self, times: int = 1) -> None:
        """Watches, then rounds of the loop."""
        self.watch()
        self.unwatched(times)

    def unwatched(self, times: int = 1) -> None:
        """Rounds by rows that are behind the cluster."""
        self.rounds = self.rounds or Rounds(self.cluster)
        for _ in range(times):
            self.rounds.run()

    def restart(self) -> None:
        """The worker dies; another one begins."""
        self.rounds = None

    def inventory(self, node: str, gpus: int = 8, *, model: str = "H100", memory: str = "80Gi") -> None:
        """The node's agent tells what it has, and reconciling opens it."""
        devices = [
            {"minor": minor, "uuid": f"GPU-{node}-{minor}", "model": model, "memory": memory} for minor in range(gpus)
        ]
        inventory_put(shape=parse_node({"name": node, "devices": devices}), actor=SYSTEM, now=self.now())
        verify_devices(backends=self.world.backends, now=self.now())
        self.watch()

    def serve_one(self) -> str:
        """A pool, a pod that waits for eight GPUs, and its node up to its inventory; the node's name."""
        self.karpenter.pool()
        self.pods(1, claim="eight")
        self.round()
        name = self.to_ready()
        self.inventory(name)
        self.round()
        return name

    @property
    def triggers(self) -> list[Object]:
        """Trigger pods in the cluster."""
        return self.karpenter.triggers()

    @property
    def states(self) -> list[str]:
        """States of the triggers' rows."""
        return list(Trigger.objects.order_by("pk").values_list("state", flat=True))

    @property
    def requests(self) -> Sequence[ScalingRequest]:
        """The oldest first."""
        return list(ScalingRequest.objects.order_by("pk"))

    @property
    def claims(self) -> Sequence[NodeClaim]:
        """The oldest first."""
        return list(NodeClaim.objects.order_by("pk"))

    def to_ready(self, trigger: int = 0) -> str:
        """A trigger's node comes, up to Ready; its name."""
        name = self.karpenter.nominate(self.triggers[trigger])
        self.round()
        self.karpenter.ready(name)
        self.round()
        return name


def reasons() -> set[str]:
    """What is said to the pods for which nothing is made."""
    return set(PodGrowth.objects.filter(pool="").values_list("reason", flat=True))


@pytest.fixture
def growing(world: World, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Growing:
    """An empty cluster with Karpenter, and a claim for half a GPU."""
    settings.GPUPLANE_SCALE_AFTER_SECONDS = 0
    world.claim("half", count=1, core=50, memoryRatio=50)
    world.claim("eight", count=8)
    return Growing(world, monkeypatch)


Then = Callable[[Growing], None]
