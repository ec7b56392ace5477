"""What admission says when GpuQueues are deleted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from claims.admission.validate_manifest import validate_manifest
from claims.kinds import QUEUE
from kube.admission import decode_review
from tests.integration.cluster.queueing.conftest import Queues


def deleted(name: str, *, requested: str) -> Any:
    """The verdict; `requested`: the name in the request, empty for one that deletes a collection."""
    request = {
        "uid": "u-1",
        "kind": {"group": "gpu.scheduling", "version": "v1", "kind": "GpuQueue"},
        "operation": "DELETE",
        "name": requested,
        "userInfo": {"username": "jane"},
        "object": None,
        "oldObject": {"metadata": {"name": name}, "spec": {}},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return validate_manifest(QUEUE, decode_review(msgspec.json.encode(body)))


@pytest.mark.parametrize("alone", [pytest.param(True, id="by name"), pytest.param(False, id="with its collection")])
@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("org", "queue org has queues below it: research", id="a parent"),
        pytest.param("research", "", id="a leaf"),
    ],
)
def test_a_queue_with_others_below_it_stays(queues: Queues, name: str, want: str, alone: bool) -> None:
    """QUEUE-1 also where all queues are deleted in one request, which names none."""
    queues.queue("org", parent="")
    queues.queue("research", parent="org")
    answer = deleted(name, requested=name if alone else "")
    assert answer.allowed is (want == "")
    if want:
        assert answer.status.message == want
