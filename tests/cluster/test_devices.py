"""What nodes have, as the cluster sees it: Device objects, kept by gpuplane under the chart's own rights; sick devices
withdrawn, holders left alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.objects import inventory, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.waiting import bound, pods_of, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)
OBJECTS = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
STATUSES = "/apis/gpu.scheduling/v1/gpunodestatuses"
PUBLISHED_SECONDS = 75
"""The beat publishes every 30 s; a turn that was under way brings the next."""


def said(stack: Stack, name: str) -> list[tuple[Any, ...]]:
    """(type, minor, id, health) of each device of a node's object, none where there is no object."""
    found = stack.api.find(f"{OBJECTS}/{name}") or {"spec": {"devices": []}}
    return [(one["type"], one["minor"], one["id"], one["health"]) for one in found["spec"].get("devices", [])]


def held_by(stack: Stack, name: str) -> list[list[str]]:
    """Pods that hold each GPU of a node, as its GpuNodeStatus says; none where it says nothing."""
    found = stack.api.find(f"{STATUSES}/{name}") or {}
    devices = found.get("status", {}).get("devices", [])
    return [[holder["pod"] for holder in device["holders"]] for device in devices]


def put(stack: Stack, body: Json) -> None:
    """The inventory of a node, as its agent would say it."""
    answer = stack.gpuplane.rest.put(f"/api/v1/nodes/{body['name']}/inventory/", json=body)
    assert answer.status_code == 200, answer.text


def test_devices_are_published_and_kept(stack: Stack, namespace: str) -> None:
    """DEV-6 NODE-3 one object a node, owned by it; edits by hand are undone; a sick device is told, withdrawn once
    free, and its holder runs on.
    """
    stack.add_nodes(["told"], gpus=2)
    body = inventory("told", gpus=2)
    want = [("gpu", one["minor"], one["uuid"], True) for one in body["devices"]]
    eventually(lambda: said(stack, "told") == want, seconds=PUBLISHED_SECONDS, what="the devices published")
    owners = stack.api.get(f"{OBJECTS}/told")["metadata"]["ownerReferences"]
    assert [(one["kind"], one["name"]) for one in owners] == [("Node", "told")]

    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.add_pods([pod("holder", namespace, resources={"nvidia.com/gpu": 1})])
        seen.until(bound("holder"), seconds=20, what="the holder bound")
        eventually(
            lambda: held_by(stack, "told") == [["holder"], []], seconds=PUBLISHED_SECONDS, what="its holder published"
        )
        printed = stack.api.kubectl("get", "gpunodestatuses", "told").splitlines()
        row = dict(zip(printed[0].split(), printed[1].split(), strict=False))
        columns = ("STATE", "MODE", "GPUS", "FREE", "UNHEALTHY")
        assert [row.get(name) for name in columns] == ["ready", "exclusive", "2", "1", "0"]
        for device in body["devices"]:
            device["healthy"] = False
        put(stack, body)
        stack.api.patch(f"{OBJECTS}/told", {"spec": {"devices": []}})
        sick = [(*one[:3], False) for one in want]
        eventually(lambda: said(stack, "told") == sick, seconds=PUBLISHED_SECONDS, what="health told, the edit undone")
        eventually(
            lambda: stack.api.get("/api/v1/nodes/told")["status"]["capacity"].get("nvidia.com/gpu") == "1",
            seconds=40,
            what="the free device withdrawn",
        )
        stack.add_pods([pod("waits", namespace, resources={"nvidia.com/gpu": 1})])
        seen.until(unschedulable("waits"), seconds=20, what="nothing to be had")
        assert pods_of(seen)["holder"]["spec"]["nodeName"] == "told"
        assert not pods_of(seen)["holder"]["metadata"].get("deletionTimestamp")

        for device in body["devices"]:
            device["healthy"] = True
        put(stack, body)
        seen.until(bound("waits"), seconds=40, what="the waiting pod bound, once the device is well")
    settled(stack)
    stack.api.delete("/api/v1/nodes/told")
    eventually(lambda: stack.api.find(f"{OBJECTS}/told") is None, seconds=PUBLISHED_SECONDS, what="the object gone too")
    eventually(lambda: stack.api.find(f"{STATUSES}/told") is None, seconds=PUBLISHED_SECONDS, what="its status too")
