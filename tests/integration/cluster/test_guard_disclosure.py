"""The Binding guard where anybody may ask: what it tells of a pod to those who cannot read it, and what it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pytest_django import Settings

from claims.admission import views
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.webhooks import answer_of

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
GUESSED = "00000000-0000-4000-8000-000000000000"


def asked(pod: str, *, uid: str = "", username: str = "mallory", **metadata: Any) -> dict[str, Any]:
    """The response to a stranger's review of a Binding, but for its own uid."""
    named = {"name": pod, **metadata} | ({"uid": uid} if uid else {})
    request = {
        "uid": "one",
        "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "binding",
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "name": pod,
        "userInfo": {"username": username},
        "object": {"metadata": named, "target": {"kind": "Node", "name": "node-a"}},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = answer_of(views.bindings_validate_anonymous, json.dumps(body).encode())
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


def reads(world: World) -> int:
    """How often the API server was asked for a pod."""
    return sum("/pods/" in one.path for one in world.server.requests)


@pytest.fixture
def pods(world: World) -> dict[str, str]:
    """UIDs of a pod that asks for devices, and of one that does not; a third one does not exist."""
    world.server.add_pod("plain", namespace=NAMESPACE)
    found = {"asks": world.pod("asks"), "plain": str(world.server.pods[NAMESPACE, "plain"]["metadata"]["uid"])}
    world.server.requests.clear()
    return found


@pytest.mark.parametrize("guard", ["everywhere", "ours"])
@pytest.mark.parametrize("uid", [pytest.param("", id="no UID"), pytest.param(GUESSED, id="a guessed UID")])
@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({}, id="plain Binding"),
        pytest.param({"annotations": {"gpu.scheduling/allocated": "n1:0"}}, id="a planted result"),
    ],
)
def test_answers_do_not_differ_by_the_pod(
    world: World, pods: dict[str, str], settings: Settings, guard: str, uid: str, metadata: dict[str, Any]
) -> None:
    """CLAIM-6 who cannot name a pod's UID cannot tell a pod with devices from another, or from none at all."""
    settings.GPUPLANE_GUARD = guard
    answers = [asked(pod, uid=uid, **metadata) for pod in (*pods, "missing", "NOT A NAME")]
    assert answers == [answers[0]] * 4
    if not uid or metadata:
        assert reads(world) == 0


def test_a_binding_without_a_uid_is_refused_with_what_to_do(world: World, pods: dict[str, str]) -> None:
    """DEV-11 the guard cannot be gone past by leaving the UID out; the scheduler is told what to do."""
    refused = asked("asks")
    assert refused["allowed"] is False
    assert "metadata.uid" in refused["status"]["message"]
    assert "webhooks.bindings.exemptUsers" in refused["status"]["message"]


def test_while_a_cluster_is_taken_over_nobody_is_stopped(
    world: World, pods: dict[str, str], settings: Settings
) -> None:
    """DEV-11 under the guard of our own pods alone a Binding without a UID passes, with a warning."""
    settings.GPUPLANE_GUARD = "ours"
    passed = asked("plain")
    assert passed["allowed"] is True
    assert "metadata.uid" in passed["warnings"][0]


def test_the_guard_holds_for_whoever_names_the_pod(world: World, pods: dict[str, str]) -> None:
    """DEV-11 kube-scheduler does: a pod with devices is refused, another passes, gpuplane's own are not looked at."""
    refused = asked("asks", uid=pods["asks"])
    assert (refused["allowed"], refused["status"]["message"]) == (
        False,
        "the pod asks for devices; only gpuplane binds such pods",
    )
    assert asked("plain", uid=pods["plain"])["allowed"] is True
    # the API server refuses this one by itself: the Binding is for another pod than the one that is there
    assert asked("asks", uid=pods["plain"])["allowed"] is True
    world.server.requests.clear()
    for account in ("gpuplane", "gpuplane-worker"):
        assert asked("asks", username=f"system:serviceaccount:gpuplane-system:{account}")["allowed"] is True
    assert reads(world) == 0


def test_only_processes_that_bind_are_trusted(world: World, pods: dict[str, str]) -> None:
    """DEV-11 the watch and the agents' processes write no results and bind nothing."""
    for account in ("gpuplane-watch", "gpuplane-telemetry", "gpuplane-beat", "gpuplane-agent"):
        user = f"system:serviceaccount:gpuplane-system:{account}"
        assert asked("asks", uid=pods["asks"], username=user)["allowed"] is False


def test_what_cannot_be_read_now_is_refused_for_now(world: World, pods: dict[str, str]) -> None:
    """CLAIM-7 while the API server does not answer, nobody who names a pod is let past."""
    world.server.stop()
    assert "try again" in asked("asks", uid=pods["asks"])["status"]["message"]


@pytest.mark.parametrize("path", ["pods_mutate", "pods_takeover", "pods_validate", "gpuclaims_validate"])
def test_all_other_webhooks_read_nothing(world: World, pods: dict[str, str], path: str) -> None:
    """CLAIM-7 their verdicts depend on the review alone, so they tell nothing that the asker did not say."""
    pod = {
        "metadata": {"name": "asks", "namespace": NAMESPACE, "annotations": {"gpu.scheduling/claim": "two"}},
        "spec": {"containers": [{"name": "main"}]},
    }
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "one",
            "kind": {"group": "", "version": "v1", "kind": "GpuClaim" if path.startswith("gpuclaims") else "Pod"},
            "operation": "CREATE",
            "namespace": NAMESPACE,
            "name": "asks",
            "userInfo": {"username": "mallory"},
            "object": pod,
        },
    }
    getattr(views, path)(json.dumps(body).encode())
    assert world.server.requests == []
