"""Queues and a gang for the pages: made by REST's services, decided by one round without a cluster."""

from __future__ import annotations

import msgspec

from access.actors import SYSTEM
from allocations.scheduling.queueing.rounds import Rounds
from allocations.waiting import note_waiting
from claims.kinds import GANG, QUEUE
from claims.queues import DIRECTORY
from claims.services import manifest_create
from kube.keys import GANG_LABEL, QUEUE_LABEL
from kube.objects import Pod
from storage.clock import database_now
from tests.extender import pod_manifest

NAMESPACE = "research"


def queue(name: str, **spec: object) -> None:
    """A queue."""
    manifest_create(QUEUE, manifest={"metadata": {"name": name}, "spec": spec}, actor=SYSTEM, now=database_now())


def pod(name: str, gpus: int, **labels: str) -> Pod:
    """A pod that waits."""
    made = pod_manifest(name, namespace=NAMESPACE, resources={"nvidia.com/gpu": str(gpus)})
    made["metadata"]["labels"] = labels
    return msgspec.convert(made, Pod)


def decided() -> None:
    """A tree of queues, a gang of which a half is there, and pods beyond a limit, decided about."""
    queue("company", quotas=[{"deserved": 4}])
    queue("training", parent="company", quotas=[{"deserved": 1, "limit": 1}], namespaces=[NAMESPACE])
    queue("serving", parent="company", priority=200, quotas=[{"deserved": 3}], queueingStrategy="StrictFIFO")
    manifest = {"metadata": {"name": "ring", "namespace": NAMESPACE}, "spec": {"minMember": 4}}
    manifest_create(GANG, manifest=manifest, actor=SYSTEM, now=database_now())
    DIRECTORY.forget()
    waiting = [pod(f"fit-{number}", 1, **{QUEUE_LABEL: "training"}) for number in range(4)]
    waiting += [pod(f"ring-{number}", 1, **{QUEUE_LABEL: "serving", GANG_LABEL: "ring"}) for number in range(2)]
    note_waiting(waiting, database_now())
    Rounds(None).run()
