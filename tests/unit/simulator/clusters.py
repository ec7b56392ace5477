"""A store whose clock the test moves, and builders of what stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from simulator.cluster.kinds import NODE_CLAIMS, NODES, PODS, Object
from simulator.cluster.store import Change, Store
from simulator.pod_writes import unschedulable_write


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 25, 12, 0, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class ClockedStore(Store):
    """A store with such a clock."""

    def __init__(self) -> None:
        self.clock_of_test = Clock()
        self.changes: list[Change] = []
        super().__init__(clock=self.clock_of_test, written=self.changes.append)

    def wait(self, seconds: float) -> None:
        self.clock_of_test.wait(seconds)

    def node(
        self,
        name: str,
        amounts: Mapping[str, str] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        given = {"cpu": "64", "memory": "512Gi", "pods": "110", **(amounts or {})}
        ready = {"type": "Ready", "status": "True"}
        status = {"capacity": given, "allocatable": given, "conditions": [ready]}
        return self.create(
            NODES, "", {"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec, "status": status}
        )

    def pod(
        self,
        name: str,
        requests: Mapping[str, str] | None = None,
        *,
        namespace: str = "team",
        unschedulable: bool = False,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        container = {"name": "main", "resources": {"requests": dict(requests or {})}}
        meta = {"name": name, "labels": dict(labels or {})}
        made = self.create(PODS, namespace, {"metadata": meta, "spec": {"containers": [container], **spec}})
        if unschedulable:
            unschedulable_write(self, made, why="0/0 nodes are available.", by="default-scheduler")
        return self.get(PODS, namespace, name)

    def bind_to(self, pod: Object, node: str) -> None:
        meta = pod["metadata"]
        self.bind(meta["namespace"], meta["name"], {"metadata": {}, "target": {"name": node}})

    @property
    def claims(self) -> list[str]:
        """Names of the pools of the NodeClaims, sorted."""
        return sorted(item["metadata"]["labels"]["karpenter.sh/nodepool"] for item in self.list(NODE_CLAIMS))
