"""A small world: a stand-in API server, a database of either vendor, Redis, and gpuplane set up to use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connections
from pytest_django import Settings

from allocations.backends import Backends, current_backends
from allocations.choices import LIVE
from allocations.extender import views
from allocations.extender.wire import BindArgs
from allocations.models import Allocation
from allocations.reconcile import Reconciled, reconcile
from allocations.reconcile.garbage_collection import Collected, collect_garbage
from audit.models import Event
from audit.requeue_notify import announcer
from kube.keys import CLAIM
from nodes.models import Device, Node
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.fakes.apikinds import EVENTS, PODS, Object
from tests.fakes.apiserver import ApiServer

NAMESPACE = "research"
RESULTS = ("gpu.scheduling/allocated", "gpu.scheduling/visible-devices")
MERGE = "application/merge-patch+json"


def bound_by_the_door(asked: Sequence[tuple[str, str, str]]) -> list[str]:
    """What bind answers for (pod, UID, node), all of them sent at once."""

    async def in_thread(function: Callable[..., Any], /, *args: Any) -> Any:
        def closing() -> Any:
            try:
                return function(*args)
            finally:
                connections.close_all()

        return await asyncio.to_thread(closing)

    async def one(name: str, uid: str, node: str) -> str:
        body = msgspec.json.encode(BindArgs(PodName=name, PodNamespace=NAMESPACE, PodUID=uid, Node=node))
        answer = await views.bind_on_loop(body, in_thread, in_thread)
        return str(msgspec.json.decode(answer)["Error"])

    async def everybody() -> list[str]:
        try:
            return await asyncio.gather(*(one(*words) for words in asked))
        finally:
            views._binds.pop(asyncio.get_running_loop())
            cluster = current_backends().cluster
            if cluster is not None:
                cluster.close_here()

    return asyncio.run(everybody())


class World:
    """Nodes, claims and pods by name, all in one namespace; the ledger as the tests ask for it."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        server.add_namespace(NAMESPACE)

    @property
    def backends(self) -> Backends:
        return current_backends()

    def node(self, name: str, *, gpus: int = 4, in_cluster: bool = True, labels: dict[str, str] | None = None) -> Node:
        node = NodeFactory(name=name, gpus=gpus)
        if in_cluster:
            self.server.add_node(name, labels=labels)
        return node

    def claim(self, name: str = "two", **devices: Any) -> None:
        spec: dict[str, Any] = {"devices": {"count": devices.pop("count", 2)}}
        if "ttl" in devices:
            spec["ttlSeconds"] = devices.pop("ttl")
        spec["devices"] |= devices
        self.server.add_gpuclaim(name, spec, namespace=NAMESPACE)

    def pod(self, name: str, *, claim: str = "two", **options: Any) -> str:
        """A pending pod that names a claim; its UID."""
        made = self.server.add_pod(name, namespace=NAMESPACE, annotations={CLAIM: claim}, **options)
        return str(made["metadata"]["uid"])

    def filter(self, name: str, *, pod: Object | None = None) -> str | None:
        """The one node that filter answers with. `pod`: as the scheduler has it, which may be behind."""
        pod = pod or self.server.pods[NAMESPACE, name]
        names = sorted(self.server.nodes)
        answer = msgspec.json.decode(views.filter(msgspec.json.encode({"Pod": pod, "NodeNames": names})))
        passed = answer.get("NodeNames") or []
        assert len(passed) <= 1
        return passed[0] if passed else None

    def bind(self, name: str, node: str, *, uid: str = "") -> str:
        """The error of bind, empty when it went well."""
        uid = uid or self.server.pods[NAMESPACE, name]["metadata"]["uid"]
        return bound_by_the_door([(name, uid, node)])[0]

    def place(self, name: str, **options: Any) -> str:
        """Create, filter and bind a pod; its UID."""
        uid = self.pod(name, **options)
        node = self.filter(name)
        assert node is not None
        assert self.bind(name, node) == ""
        return uid

    def remove(self, name: str) -> None:
        self.server.remove_pod(name, namespace=NAMESPACE)

    def finish(self, name: str, phase: str = "Succeeded") -> None:
        self.server.set_pod_phase(name, phase, namespace=NAMESPACE)

    def refuse(self, name: str, *, at: datetime | None = None, message: str = "no volume could be bound") -> None:
        """An attempt fails: PodScheduled as kube-scheduler leaves it, whose clock says `at`.

        Nothing is written where status, reason and message are the same; the time is that of the first failure.
        """
        told = (self.server.pods[NAMESPACE, name].get("status") or {}).get("conditions") or []
        known: Object = next((one for one in told if one["type"] == "PodScheduled" and one["status"] == "False"), {})
        if known.get("message") == message:
            return
        moment = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": known.get("lastTransitionTime", moment),
        }
        body = {"status": {"conditions": [condition]}}
        self.server.store.patch(PODS, NAMESPACE, name, body, content_type=MERGE, subresource="status")

    def failed_event(self, name: str, *, version: str, message: str, times: int = 1) -> None:
        """FailedScheduling about a version of the pod; the second failure of a version makes it a series, later ones
        nothing.
        """
        key = f"{name}.{version}"
        if times == 2:
            body = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
            self.server.store.patch(EVENTS, NAMESPACE, key, body, content_type=MERGE)
            return
        meta = self.server.pods[NAMESPACE, name]["metadata"]
        about = {"kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": meta["uid"], "resourceVersion": version}
        event = {
            "metadata": {"name": key, "namespace": NAMESPACE},
            "involvedObject": about,
            "reason": "FailedScheduling",
            "message": message,
            "type": "Warning",
        }
        self.server.store.create(EVENTS, NAMESPACE, event)

    def version(self, name: str) -> str:
        """The pod's resourceVersion."""
        return str(self.server.pods[NAMESPACE, name]["metadata"]["resourceVersion"])

    def annotate(self, name: str, **annotations: str | None) -> None:
        body = {"metadata": {"annotations": annotations}}
        self.server.store.patch(PODS, NAMESPACE, name, body, content_type=MERGE)

    def reconcile(self, *, later: float = 0.0) -> Reconciled:
        return reconcile(backends=self.backends, now=database_now() + timedelta(seconds=later))

    def collect_garbage(self, *, later: float = 0.0) -> Collected:
        return collect_garbage(now=database_now() + timedelta(seconds=later), backends=self.backends)

    def used(self, node: str) -> list[int]:
        """Core percent in use, by minor."""
        return list(Device.objects.filter(node__name=node).order_by("minor").values_list("core_used", flat=True))

    def states(self, name: str) -> list[str]:
        """States of the pod's allocations, the oldest first."""
        rows = Allocation.objects.filter(pod_name=name).order_by("created_at")
        return list(rows.values_list("state", flat=True))

    def live(self) -> int:
        return Allocation.objects.filter(state__in=LIVE).count()

    def leases(self) -> dict[str, str]:
        """Lease name → holder."""
        return {name: lease["spec"]["holderIdentity"] for (_, name), lease in self.server.leases.items()}

    def told(self, kind: str) -> list[str]:
        """Messages of the audit events of a kind, the oldest first."""
        return list(Event.objects.filter(kind=kind).order_by("id").values_list("message", flat=True))

    def settled(self) -> bool:
        """Wait until all announcing is done."""
        from django.conf import settings

        return announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL).settled(seconds=30)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def world(
    server: ApiServer, ledger_db: TestDatabase, redis_url: str, tmp_path: Path, settings: Settings
) -> Iterator[World]:
    """Everything, empty."""
    settings.GPUPLANE_KUBECONFIG = str(server.kubeconfig(tmp_path / "kubeconfig"))
    settings.GPUPLANE_REDIS_URL = redis_url
    yield World(server)
    cluster = current_backends().cluster
    if cluster is not None:
        cluster.close()  # first, so that the announcer does not wait between tries
    announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL).close()
