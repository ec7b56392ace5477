"""The Binding guard with a cluster: who may bind a pod that asks for devices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from claims.admission import views
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.webhooks import answer_of

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)


def review_binding(pod: str, username: str = "mallory") -> dict[str, Any]:
    """The guard's response to a Binding of the pod."""
    request = {
        "uid": "one",
        "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "binding",
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "name": pod,
        "userInfo": {"username": username},
        "object": {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "node-a"}},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    response: dict[str, Any] = json.loads(answer_of(views.bindings_validate, json.dumps(body).encode()))["response"]
    return response


def test_a_binding_made_by_hand_is_refused(world: World) -> None:
    """CLAIM-7 only gpuplane binds a pod that asks for devices; other pods are nobody's business."""
    world.pod("ours")
    world.server.add_pod("plain", namespace=NAMESPACE)
    assert review_binding("ours")["allowed"] is False
    assert review_binding("ours", "system:serviceaccount:gpuplane-system:gpuplane")["allowed"] is True
    assert review_binding("plain")["allowed"] is True


def test_what_cannot_be_seen_now_is_refused_for_now(world: World) -> None:
    """CLAIM-7 while the API server does not answer, nobody is let past."""
    world.pod("ours")
    world.server.stop()
    assert "try again" in review_binding("ours")["status"]["message"]


def test_missing_rights_of_ours_do_not_stop_the_cluster(world: World) -> None:
    """CLAIM-7 where we may never read pods, Bindings pass with a warning that says so."""
    world.pod("ours")
    world.server.faults.append(Fault("GET", r"/pods/", status=403, reason="Forbidden", times=5))
    response = review_binding("ours")
    assert response["allowed"] is True
    assert "not checked" in response["warnings"][0]
