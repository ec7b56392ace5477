"""Nodes with a device plugin whose GPUs are behind reservation pods, in every state that the pages show."""

from __future__ import annotations

from datetime import timedelta

from allocations.choices import GroupState
from allocations.ledger.groups import fail_group, put_off
from nodes.choices import Mode
from nodes.models import Node
from storage.clock import database_now
from tests.extender import filtered, pod_manifest
from tests.factories import NodeFactory
from tests.groups import leave, leaving, share, whole

FAILURE = "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"


def reserved() -> tuple[Node, Node]:
    """The nodes p1, with groups, and p2, which begins none for now; a pod waits for that."""
    first = NodeFactory(name="p1", gpus=8, mode=Mode.DEVICE_PLUGIN)
    now = database_now()
    for pod in ("notebook", "serving"):
        share(pod, node="p1", told=["GPU-p1-5"])
    leaving("serving")
    share("train", node="p1", request=whole(3), now=now - timedelta(minutes=12))
    share("batch", node="p1", namespace="vision", request=whole(1), state=GroupState.UNPROTECTED)
    bare = share("chat", node="p1", namespace="vision", state=GroupState.UNPROTECTED, now=now - timedelta(minutes=3))
    put_off(bare.pk, now=now)
    share("next", node="p1", state=GroupState.STARTING)
    share("done", node="p1", request=whole(1), now=now - timedelta(hours=2))
    leave("done")
    second = NodeFactory(name="p2", gpus=2, mode=Mode.DEVICE_PLUGIN)
    unlucky = share("unlucky", node="p2", state=GroupState.STARTING)
    fail_group(unlucky.pk, FAILURE, now=now, actor="scheduler")
    leave("unlucky")
    assert filtered(pod_manifest("waits", annotations={"gpu-fraction": "0.9"}), ["p2"]) is None
    return first, second
