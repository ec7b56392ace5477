"""Spoiled bodies over HTTP: the doors themselves add nothing that breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster_answers import (
    well_formed_bind,
    well_formed_filter,
    well_formed_preempt,
    well_formed_review,
    well_formed_scores,
)
from tests.exploring import examples
from tests.functional.cluster_client import ClusterClient, cluster_client, pod_shape
from tests.hostile import spoiled
from tests.ledger_truth import problems
from tests.servers.web import LiveApp

EXAMPLES = 400
NAMES = ["fuzz-a", "fuzz-b"]
POD = pod_shape("fuzz", claim="one")
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "705ab4f5", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": POD},
}
QUESTIONS: dict[str, tuple[dict[str, Any], Callable[[bytes], Any]]] = {
    "/extender/filter": ({"Pod": POD, "NodeNames": NAMES}, well_formed_filter),
    "/extender/prioritize": ({"Pod": POD, "NodeNames": NAMES}, well_formed_scores),
    "/extender/bind": (
        {"PodName": "fuzz", "PodNamespace": "research", "PodUID": POD["metadata"]["uid"], "Node": "fuzz-a"},
        well_formed_bind,
    ),
    "/extender/preempt": (
        {"Pod": POD, "NodeNameToMetaVictims": {"fuzz-a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}},
        well_formed_preempt,
    ),
    "/webhooks/pods/mutate": (REVIEW, well_formed_review),
    "/webhooks/pods/validate": (REVIEW, well_formed_review),
    "/webhooks/gpuclaims/validate": (REVIEW, well_formed_review),
    "/webhooks/bindings/validate": (REVIEW, well_formed_review),
}


@pytest.fixture(scope="module")
def client(live_app: LiveApp) -> Iterator[ClusterClient]:
    with cluster_client(live_app) as client:
        for name in NAMES:
            client.register(name)
        client.claim("one")
        yield client


@pytest.mark.hypothesis
def test_no_body_breaks_an_endpoint(client: ClusterClient, live_app: LiveApp) -> None:
    """CLAIM-3 every answer is 200 and well formed, and the process goes on."""

    @examples(EXAMPLES)
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(QUESTIONS)))
        good, check = QUESTIONS[path]
        answer = client.cluster.post(path, content=data.draw(spoiled(good)))
        assert answer.status_code == 200
        check(answer.content)

    fuzz()
    assert problems() == []
    assert "cluster.request_failed" not in live_app.log.read_text()
    assert "without_database" not in live_app.log.read_text()
