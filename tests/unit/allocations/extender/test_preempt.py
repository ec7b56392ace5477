"""preempt: only nodes where the victims' devices make room."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocations.extender import views
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory


@pytest.fixture
def world(db: None) -> None:
    """n1: two GPUs held whole by v0 and v1; n2: one GPU shared by s0 and s1."""
    NodeFactory(name="n1", gpus=2)
    NodeFactory(name="n2", gpus=1)
    GpuClaimFactory(name="one")
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    GpuClaimFactory(name="half", spec={"devices": {"count": 1, "core": 50, "memoryRatio": 50}})
    for name, claim, node in (("v0", "one", "n1"), ("v1", "one", "n1"), ("s0", "half", "n2"), ("s1", "half", "n2")):
        pod = pod_manifest(name, claim=claim)
        assert bound(pod, filtered(pod, [node])) == ""


def asked(pod: Any, victims: dict[str, list[str]], *, whole_pods: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = {"Pod": pod}
    if whole_pods:
        body["NodeNameToVictims"] = {
            node: {"Pods": [pod_manifest(name) for name in names], "NumPDBViolations": 1}
            for node, names in victims.items()
        }
    else:
        body["NodeNameToMetaVictims"] = {
            node: {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": 1}
            for node, names in victims.items()
        }
    told: dict[str, Any] = json.loads(views.preempt(json.dumps(body).encode()))["NodeNameToMetaVictims"]
    return told


@pytest.mark.parametrize("whole_pods", [False, True], ids=["by uid", "whole pods"])
@pytest.mark.parametrize(
    ("claim", "victims", "want"),
    [
        pytest.param("one", {"n1": ["v0"], "n2": ["s0"]}, ["n1"], id="half a card is no whole one"),
        pytest.param("one", {"n1": ["v0"], "n2": ["s0", "s1"]}, ["n1", "n2"], id="both sharers gone"),
        pytest.param("two", {"n1": ["v0"]}, [], id="one of two is too few"),
        pytest.param("two", {"n1": ["v0", "v1"], "n2": ["s0", "s1"]}, ["n1"], id="the other is too small"),
        pytest.param("half", {"n2": ["s1"]}, ["n2"], id="a share for a share"),
        pytest.param("one", {"n1": ["stranger"], "n3": ["v0"]}, [], id="victims without devices, unknown node"),
        pytest.param("one", {"n1": []}, [], id="no victims"),
        pytest.param("one", {"n2": ["v0", "v1"]}, [], id="devices of another node"),
        pytest.param("nobody", {"n1": ["v0", "v1"]}, [], id="no such claim"),
    ],
)
@pytest.mark.usefixtures("world")
def test_which_nodes_stay(claim: str, victims: dict[str, list[str]], want: list[str], whole_pods: bool) -> None:
    """CLAIM-4 an echo would evict pods for nothing; the answer names the victims by uid, budgets as they came."""
    told = asked(pod_manifest("urgent", claim=claim), victims, whole_pods=whole_pods)
    assert sorted(told) == want
    for node in want:
        assert told[node] == {"Pods": [{"UID": f"uid-{name}"} for name in victims[node]], "NumPDBViolations": 1}


@pytest.mark.usefixtures("world")
def test_many_victims_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-4 however many there are."""
    monkeypatch.setattr("allocations.scheduling.preemption.candidates.UIDS_A_QUERY", 1)  # "UIDS_A_QUERY", 1)
    assert sorted(asked(pod_manifest("urgent", claim="two"), {"n1": ["a", "v0", "b", "v1"]})) == ["n1"]


@pytest.mark.usefixtures("world")
def test_pods_without_devices_are_left_to_others() -> None:
    """CLAIM-4 all that was offered stays; so does all for an odd pod that is not ours."""
    assert sorted(asked(pod_manifest("plain"), {"n1": ["v0"], "n9": []})) == ["n1", "n9"]
    assert sorted(asked(pod_manifest("plain", uid="a/b"), {"n1": ["v0"]})) == ["n1"]
    assert asked(pod_manifest("urgent", claim="one", uid="a/b"), {"n1": ["v0"]}) == {}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"Pod": 5, "NodeNameToMetaVictims": {"n1": {}}}', id="no pod"),
        pytest.param(b'{"NodeNameToMetaVictims": {"n1": {"NumPDBViolations": 99999999999999999999}}}', id="huge"),
        pytest.param(b'{"Pod": {"metadata": {"name": "\xff"}}, "NodeNameToMetaVictims": {"n1": {}}}', id="no UTF-8"),
    ],
)
@pytest.mark.usefixtures("world")
def test_bad_questions_evict_nobody(body: bytes) -> None:
    """No node stays."""
    assert json.loads(views.preempt(body)) == {"NodeNameToMetaVictims": {}}
