"""A cluster with queues and gangs, and the loop by hand: each `round` is one decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from access.actors import SYSTEM
from allocations.models import Allocation, PodRefusal
from allocations.scheduling.queueing.rounds import RoundResult, Rounds
from allocations.waiting import forget_waiting, note_waiting
from claims.kinds import GANG, QUEUE
from claims.queues import DIRECTORY
from claims.services import manifest_create
from kube.keys import BORROW_IDLE_LABEL, GANG_LABEL, PREEMPTIBLE_LABEL, QUEUE_GATE, QUEUE_LABEL
from kube.objects import Pod
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE, World

GATE: dict[str, Any] = {"schedulingGates": [{"name": QUEUE_GATE}]}


class Queues:
    """The world, its queues, and one worker's rounds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[str] = []
        """Tasks for other workers."""
        self._rounds: Rounds | None = None

    def queue(self, name: str, **spec: Any) -> None:
        """A queue; `quotas` as (deserved, limit) of every model, or as entries."""
        manifest_create(QUEUE, manifest={"metadata": {"name": name}, "spec": spec}, actor=SYSTEM, now=database_now())
        DIRECTORY.forget()

    def gang(self, name: str, members: int, **spec: Any) -> None:
        manifest = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"minMember": members, **spec}}
        manifest_create(GANG, manifest=manifest, actor=SYSTEM, now=database_now())

    def pod(
        self,
        name: str,
        *,
        gpus: int = 1,
        queue: str = "",
        gang: str = "",
        gated: bool = True,
        preemptible: bool = True,
        borrows_idle: bool = False,
        priority: int = 0,
        **spec: Any,
    ) -> str:
        """A pod of native GPUs, which the watch has seen; its UID."""
        labels = {QUEUE_LABEL: queue, GANG_LABEL: gang, PREEMPTIBLE_LABEL: "" if preemptible else "false"}
        labels[BORROW_IDLE_LABEL] = "true" if borrows_idle else ""
        made = self.world.server.add_pod(
            name,
            namespace=NAMESPACE,
            labels={key: value for key, value in labels.items() if value},
            limits={"nvidia.com/gpu": str(gpus)},
            spec={**(GATE if gated else {}), "priority": priority, "schedulerName": "gpu-scheduler", **spec},
        )
        self.see(name)
        return str(made["metadata"]["uid"])

    def see(self, *names: str) -> None:
        """The watch sees these pods as they are now."""
        found = [self.world.server.pods[NAMESPACE, name] for name in names]
        note_waiting([msgspec.convert(one, Pod) for one in found], database_now())

    def round(self) -> RoundResult:
        """One decision, carried out; the watch sees what it changed on pods that wait."""
        self._rounds = self._rounds or Rounds(self.world.backends.cluster)
        result = self._rounds.run()
        self.see(*(name for _, name in self.world.server.pods if not self._bound(name)))
        return result

    def settle(self, most: int = 10) -> None:
        """Rounds until nothing changes any more."""
        for _ in range(most):
            if not self.round().again:
                return
        raise AssertionError(f"after {most} rounds there is still something to do")

    def gated(self, name: str) -> bool:
        return bool(self.world.server.pods[NAMESPACE, name]["spec"].get("schedulingGates"))

    def node_of(self, name: str) -> str:
        """Where the pod holds devices, empty where it does not."""
        rows = Allocation.objects.filter(pod_name=name, state__in=("held", "reserved", "bound"))
        return rows.values_list("node__name", flat=True).first() or ""

    def why(self, name: str) -> str:
        """Why the pod waits."""
        return PodRefusal.objects.get(pod_name=name).summary

    def bind(self, name: str) -> str:
        """As kube-scheduler does with a pod without gates; the node."""
        node = self.world.filter(name)
        assert node is not None, f"{name} was refused"
        assert self.world.bind(name, node) == ""
        forget_waiting([self.world.server.pods[NAMESPACE, name]["metadata"]["uid"]])
        return node

    def run(self, name: str, **options: Any) -> str:
        """A pod that runs; its UID."""
        uid = self.pod(name, **options)
        self.settle()
        self.bind(name)
        return uid

    def _bound(self, name: str) -> bool:
        return bool(self.world.server.pods[NAMESPACE, name]["spec"].get("nodeName"))


@pytest.fixture
def queues(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queues]:
    DIRECTORY.forget()
    made = Queues(world)
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda task, **_: made.sent.append(task))
    yield made
    DIRECTORY.forget()
