"""The imitated kubelet does what the tests of reservation pods rely on, on a real API server and beside KWOK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent.checkpoint import read_file
from kube.reservation_pod import reservation_pod, reservation_pod_name
from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.kubelet import DEVICE_PLUGIN, RESERVED, Kubelets, kubelet_node, uuids
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import Json, node, pod

NODE = "kubelet-1"
SOON = 30.0
PODS = f"/api/v1/namespaces/{chart.RESERVATIONS}/pods"


@pytest.fixture(scope="module", autouse=True)
def reservations(plane: ControlPlane) -> None:
    """The namespace of reservation pods, and their account."""
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        plane.api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}")  # of a gpuplane that another module had
    objects = chart.render()
    plane.namespace(chart.NAMESPACE)
    plane.api.apply(*chart.of_kinds(objects, "Namespace"))
    kinds = chart.of_kinds(objects, "ServiceAccount", "Role", "RoleBinding")
    plane.api.apply(*(one for one in kinds if one["metadata"]["namespace"] == chart.RESERVATIONS))


@pytest.fixture
def at(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with one node of four GPUs, without any pod afterwards."""
    plane.api.create("/api/v1/nodes", kubelet_node(NODE, 4))
    yield plane
    plane.api.delete(PODS, grace_seconds=0)
    plane.api.delete("/api/v1/namespaces/default/pods", grace_seconds=0)
    plane.api.delete(f"/api/v1/nodes/{NODE}")


@contextmanager
def kubelets(plane: ControlPlane, **options: Any) -> Iterator[tuple[Kubelets, Observer]]:
    """The node's kubelet, and a watch on all pods."""
    seen = Observer(plane.api, "/api/v1/pods")
    with Kubelets(plane, {NODE: uuids(NODE, 4)}, **options).running() as made, seen.watching():
        yield made, seen


def reserve(plane: ControlPlane, group: str, gpus: int = 1) -> Json:
    """A reservation pod, as gpuplane makes it."""
    body = reservation_pod(
        namespace=chart.RESERVATIONS,
        name=reservation_pod_name(NODE, group),
        node=NODE,
        group=group,
        gpus=gpus,
        image="gpuplane:1",
        priority_class="system-node-critical",
    )
    return plane.api.create(PODS, body)


def work(plane: ControlPlane, name: str, gpus: int) -> Json:
    """A pod of a user that a scheduler has bound."""
    body = pod(name, "default", resources={"nvidia.com/gpu": gpus} if gpus else {}, nodeName=NODE)
    return plane.api.create("/api/v1/namespaces/default/pods", body)


def uid(one: Json) -> str:
    return str(one["metadata"]["uid"])


def named(seen: Observer, one: Json) -> str | None:
    """The annotation of a reservation pod."""
    found = seen.now.get(f"{one['metadata']['namespace']}/{one['metadata']['name']}/{uid(one)}")
    annotations: dict[str, str] = (found or one)["metadata"]["annotations"]
    return annotations.get(RESERVED)


def phase(seen: Observer, one: Json) -> str:
    found = seen.now.get(f"{one['metadata']['namespace']}/{one['metadata']['name']}/{uid(one)}", one)
    return str(found["status"].get("phase"))


def test_reservation_pods_name_their_gpus(at: ControlPlane) -> None:
    """SHARE-3 SHARE-4 the real program, with the pod's own token and the chart's Role, in a namespace of the level
    `restricted`.
    """
    with kubelets(at, seed=1) as (node, seen):
        node.choose(NODE, f"GPU-{NODE}-2")
        one, two = reserve(at, "a"), reserve(at, "b", gpus=2)
        seen.until(lambda _: named(seen, one) and named(seen, two), seconds=SOON, what="both have named their GPUs")
        assert named(seen, one) == f"GPU-{NODE}-2"
        assert node.record(NODE) == {uid(made): tuple((named(seen, made) or "").split(",")) for made in (one, two)}
        assert len(set(node.free(NODE))) == 1
        seen.until(lambda _: phase(seen, two) == "Running", seconds=SOON, what="it runs")
        entries = read_file(node.checkpoint(NODE))
        assert {entry.pod_uid: sorted(entry.devices) for entry in entries} == {
            key: sorted(gpus) for key, gpus in node.record(NODE).items()
        }
        at.api.delete(f"{PODS}/{one['metadata']['name']}")
        node.until(lambda now: f"GPU-{NODE}-2" in now.free(NODE), seconds=SOON, what="its GPU is free")
        assert uid(one) not in {uid(found) for found in at.api.items(PODS)}


def test_users_pods_and_pods_that_do_not_fit(at: ControlPlane) -> None:
    """The kubelet's own words, which gpuplane has to understand; KWOK leaves these pods alone."""
    with kubelets(at) as (node, seen):
        plain, three = work(at, "plain", 0), work(at, "three", 3)
        seen.until(lambda _: phase(seen, three) == "Running", seconds=SOON, what="three run")
        seen.until(lambda _: phase(seen, plain) == "Running", seconds=SOON, what="a pod without GPUs runs")
        two = work(at, "two", 2)
        seen.until(lambda _: phase(seen, two) == "Failed", seconds=SOON, what="two do not fit")
        status = at.api.get("/api/v1/namespaces/default/pods/two")["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 2, Available: 1" in status["message"]
        at.api.delete("/api/v1/namespaces/default/pods/three")
        node.until(lambda now: len(now.free(NODE)) == 4, seconds=SOON, what="three have gone")


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu"])
def test_a_kubelet_that_refuses(at: ControlPlane, reason: Any) -> None:
    with kubelets(at) as (node, seen):
        node.behave(NODE, reason)
        one = reserve(at, "a")
        seen.until(lambda _: phase(seen, one) == "Failed", seconds=SOON, what="it is refused")
        assert at.api.get(f"{PODS}/{one['metadata']['name']}")["status"]["reason"] == reason
        assert node.record(NODE) == {}


def test_programs_that_come_late_or_never_or_lie(at: ControlPlane) -> None:
    with kubelets(at) as (node, seen):
        node.behave(NODE, "never")
        never = reserve(at, "never")
        seen.until(lambda _: phase(seen, never) == "Running", seconds=SOON, what="the silent one runs")
        node.behave(NODE, "other")
        lies = reserve(at, "lies")
        seen.until(lambda _: named(seen, lies), seconds=SOON, what="another GPU is named")
        node.behave(NODE, "late")
        late = reserve(at, "late")
        node.until(lambda now: uid(late) in now.record(NODE), seconds=SOON, what="it is admitted")
        assert named(seen, lies) == node.other
        assert named(seen, late) is None
        node.late.set()
        seen.until(lambda _: named(seen, late), seconds=SOON, what="it names its GPU late")
        assert named(seen, never) is None
        assert len(node.record(NODE)) == 3


def test_a_kubelet_that_forgets(at: ControlPlane) -> None:
    """Its checkpoint is empty then, and a GPU in use is given away."""
    with kubelets(at, fast=True) as (node, seen):
        all_four = reserve(at, "a", gpus=4)
        seen.until(lambda _: named(seen, all_four), seconds=SOON, what="four are named")
        node.forget(NODE)
        assert read_file(node.checkpoint(NODE)) == []
        again = reserve(at, "b")
        seen.until(lambda _: named(seen, again), seconds=SOON, what="one of them is named again")
        assert (named(seen, again) or "") in (named(seen, all_four) or "").split(",")
        assert node.log(uid(again)) == ""


def test_pods_of_other_nodes_are_left_to_kwok(at: ControlPlane) -> None:
    at.api.create("/api/v1/nodes", node("plain-1"))
    try:
        with kubelets(at) as (_, seen):
            theirs = at.api.create("/api/v1/namespaces/default/pods", pod("theirs", "default", nodeName="plain-1"))
            seen.until(lambda _: phase(seen, theirs) == "Running", seconds=SOON, what="KWOK runs it")
            at.api.delete("/api/v1/namespaces/default/pods/theirs")
            seen.until(lambda _: not seen.now, seconds=SOON, what="KWOK takes it away")
    finally:
        at.api.delete("/api/v1/nodes/plain-1")


def test_the_node_is_one_with_a_device_plugin() -> None:
    made = kubelet_node(NODE, 4)
    assert made["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert DEVICE_PLUGIN.items() <= made["metadata"]["labels"].items()
    assert json.dumps(made)
