"""Whatever comes in, a well-formed answer goes out and the ledger stays whole: both databases, in the process."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from allocations.extender import views
from claims.admission import views as admission
from kube.keys import ALLOCATED, CLAIM
from tests.cluster_answers import (
    well_formed_bind,
    well_formed_filter,
    well_formed_preempt,
    well_formed_review,
    well_formed_scores,
)
from tests.databases import TestDatabase
from tests.exploring import examples
from tests.extender import pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.hostile import spoiled
from tests.ledger_truth import problems
from tests.webhooks import answer_of

NODES = ("node-a", "node-b")
NUMBERS = {"sqlite": 1000, "postgresql": 800}


def node_object(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "status": {"capacity": {"cpu": "4"}}}


@st.composite
def good_pods(draw: st.DrawFn) -> dict[str, Any]:
    name = f"pod-{draw(st.integers(1, 6))}"
    shape = draw(st.sampled_from(["claim", "share", "native", "koordinator", "missing", "plain", "gang"]))
    resources = {
        "native": {"nvidia.com/gpu": "1"},
        "koordinator": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    }.get(shape)
    claims = {"claim": "one", "share": "half", "missing": "nobody", "gang": "crew"}
    return pod_manifest(name, claim=claims.get(shape), resources=resources)


@st.composite
def good_questions(draw: st.DrawFn) -> dict[str, Any]:
    pod = draw(good_pods())
    if draw(st.booleans()):
        return {"Pod": pod, "NodeNames": list(NODES)}
    return {"Pod": pod, "Nodes": {"items": [node_object(name) for name in NODES]}, "NodeNames": None}


@st.composite
def good_binds(draw: st.DrawFn) -> dict[str, Any]:
    name = f"pod-{draw(st.integers(1, 6))}"
    return {
        "PodName": name,
        "PodNamespace": "research",
        "PodUID": f"uid-{name}",
        "Node": draw(st.sampled_from([*NODES, "nowhere"])),
    }


@st.composite
def good_preemptions(draw: st.DrawFn) -> dict[str, Any]:
    pod = draw(good_pods())
    if draw(st.booleans()):
        victims: dict[str, Any] = {
            name: {"Pods": [{"UID": "uid-pod-1"}, {"UID": "uid-x"}], "NumPDBViolations": 1} for name in NODES
        }
        return {"Pod": pod, "NodeNameToMetaVictims": victims, "NodeNameToVictims": None}
    victims = {name: {"Pods": [draw(good_pods())], "NumPDBViolations": 0} for name in NODES}
    return {"Pod": pod, "NodeNameToVictims": victims}


@pytest.fixture
def world(ledger_db: TestDatabase) -> TestDatabase:
    for name in NODES:
        NodeFactory(name=name, gpus=2)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    GpuClaimFactory(name="half", spec={"devices": {"count": 1, "core": 50, "memoryRatio": 50}})
    GpuClaimFactory(name="crew", spec={"devices": {"count": 1}, "gangRef": "crew"})
    return ledger_db


@pytest.mark.hypothesis
def test_no_body_breaks_the_extender(world: TestDatabase) -> None:
    """CLAIM-3 LEASE-2 any sequence of spoiled questions gets well-formed answers and leaves the ledger whole."""

    @examples(NUMBERS[world.vendor])
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(["filter", "prioritize", "bind", "preempt"]))
        good = {"bind": good_binds, "preempt": good_preemptions}.get(verb, good_questions)
        body = data.draw(good().flatmap(spoiled))
        check = {
            "filter": well_formed_filter,
            "prioritize": well_formed_scores,
            "bind": well_formed_bind,
            "preempt": well_formed_preempt,
        }[verb]
        with capture_logs() as lines:
            check(getattr(views, verb)(body))
        assert [line for line in lines if line["log_level"] == "error"] == [], "no statement met what it cannot take"
        if verb in {"filter", "bind"}:
            assert problems() == []

    fuzz()


@st.composite
def good_reviews(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["Pod", "GpuClaim", "Binding"]))
    pod = draw(good_pods())
    pod["spec"]["initContainers"] = [{"name": "init", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "all"}]}]
    if draw(st.booleans()):
        pod["metadata"]["annotations"][ALLOCATED] = "node-a:0,1"
    objects = {
        "Pod": pod,
        "GpuClaim": {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": "one", "namespace": "research"},
            "spec": {"devices": {"count": 2, "memory": "16Gi", "policy": "contiguous"}, "ttlSeconds": 60},
        },
        "Binding": {"metadata": {"name": "pod-1", "annotations": {CLAIM: "one"}}, "target": {"name": "node-a"}},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "11111111-2222",
            "kind": {"group": "", "version": "v1", "kind": kind},
            "operation": draw(st.sampled_from(["CREATE", "UPDATE", "DELETE"])),
            "namespace": "research",
            "name": "pod-1",
            "userInfo": {"username": draw(st.sampled_from(["jane", "system:serviceaccount:gpuplane-system:gpuplane"]))},
            "object": objects[kind],
            "oldObject": objects[kind] if draw(st.booleans()) else None,
            "dryRun": draw(st.booleans()),
        },
    }


@pytest.mark.parametrize("name", ["pods_mutate", "pods_validate", "gpuclaims_validate", "bindings_validate"])
@pytest.mark.hypothesis
def test_no_body_breaks_a_webhook(name: str) -> None:
    """CLAIM-7 DEV-3 CLAIM-1 a spoiled review is refused with a message, or passes untouched; the same twice alike."""
    view = getattr(admission, name)
    if name == "bindings_validate":
        view = partial(answer_of, view)

    @examples(700)
    @given(body=good_reviews().flatmap(spoiled))
    def fuzz(body: bytes) -> None:
        answer = view(body)
        well_formed_review(answer)
        assert view(body) == answer

    fuzz()


def test_the_good_bodies_are_good(world: TestDatabase) -> None:
    """The fuzz starts from bodies that work, or it would prove nothing."""
    question = {"Pod": pod_manifest("pod-1", claim="one"), "NodeNames": list(NODES)}
    assert json.loads(views.filter(json.dumps(question).encode()))["NodeNames"]
