"""One answer to why, for who may see it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from access.actors import SYSTEM, Actor
from access.choices import Role
from access.errors import NotFound
from allocations import services
from allocations.explain import NodePage, claim_explain, pod_explain
from allocations.models import Allocation
from allocations.scheduling.expired_holds import expire_holds
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory

OURS = Actor("olga", Role.VIEWER, frozenset({"research"}))
THEIRS = Actor("otto", Role.OPERATOR, frozenset({"other"}))


@pytest.fixture(autouse=True)
def _world(db: None) -> None:
    NodeFactory(name="n1", gpus=2)
    NodeFactory(name="n2", gpus=1)
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})


def run(name: str) -> dict[str, Any]:
    pod = pod_manifest(name, claim="two")
    assert bound(pod, filtered(pod, ["n1", "n2"])) == ""
    return pod


def release(name: str) -> None:
    allocation = Allocation.objects.get(pod_name=name, state="bound")
    services.allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=datetime.now(UTC))


def test_what_a_bound_pod_holds() -> None:
    """VIEW-3 node, devices and what happened, the newest first."""
    run("p")
    told = pod_explain("research", "p", OURS)
    assert (told["state"], told["node"], told["claim"]) == ("bound", "n1", "two")
    assert [(one["uuid"], one["whole"]) for one in told["devices"]] == [("GPU-n1-0", True), ("GPU-n1-1", True)]
    assert [event["kind"] for event in told["timeline"]] == [
        "allocation.bound",
        "allocation.reserved",
        "allocation.held",
    ]
    assert told["reasons"] == [{"reason": "fewer than 2 gpu devices", "nodes": 1}]


def test_what_a_waiting_pod_waits_for_now() -> None:
    """VIEW-3 asked again at this moment, node by node: an old answer is never shown as today's."""
    run("p")
    assert filtered(pod_manifest("q", claim="two"), ["n1", "n2"]) is None
    told = pod_explain("research", "q", OURS)
    assert (told["state"], told["node"], told["devices"]) == ("pending", None, [])
    assert {one["node"]: (one["reason"], one["resolvable"]) for one in told["nodes"]} == {
        "n1": ("fewer than 2 whole gpu devices free", True),
        "n2": ("fewer than 2 gpu devices", False),
    }
    assert sum(reason["nodes"] for reason in told["reasons"]) == 2
    release("p")
    assert pod_explain("research", "q", OURS)["summary"].startswith("n1 can serve it now")


def test_what_other_schedulers_go_by_is_reported() -> None:
    """VIEW-3 of a pod that waits and of one that was placed: what it has that nothing here looks at."""
    hint = {"scheduling.koordinator.sh/device-allocate-hint": "{}"}
    told = ["annotation scheduling.koordinator.sh/device-allocate-hint is ignored: any device that fits is taken"]
    placed, waiting = pod_manifest("p", claim="two"), pod_manifest("q", claim="two")
    placed["metadata"]["annotations"] |= hint
    waiting["metadata"]["annotations"] |= hint
    assert bound(placed, filtered(placed, ["n1", "n2"])) == ""
    assert filtered(waiting, ["n1", "n2"]) is None
    assert pod_explain("research", "p", OURS)["warnings"] == told
    assert pod_explain("research", "q", OURS)["warnings"] == told
    assert [pod["warnings"] for pod in claim_explain("research", "two", OURS)["pods"]] == [told, told]


def test_nothing_is_reported_where_nothing_is_ignored() -> None:
    run("p")
    assert pod_explain("research", "p", OURS)["warnings"] == []


def test_a_broken_rule_is_reported_as_it_was() -> None:
    """VIEW-3 CLAIM-3 there is no request to plan again."""
    assert filtered(pod_manifest("q", claim="nobody"), ["n1", "n2"]) is None
    told = pod_explain("research", "q", OURS)
    assert told["summary"] == "GpuClaim nobody does not exist in the namespace of the pod"
    assert told["reasons"] == [{"reason": told["summary"], "nodes": 2}]


def test_the_newer_of_two_stories() -> None:
    """VIEW-3 a pod that ran and waits again waits; one that waited and runs now runs."""
    pod = pod_manifest("q", claim="two")
    run("p")
    assert filtered(pod, ["n1"]) is None
    release("p")
    assert filtered(pod, ["n1"]) == "n1"
    assert pod_explain("research", "q", OURS)["state"] == "held"
    expire_holds(datetime.now(UTC) + timedelta(minutes=1))
    assert pod_explain("research", "q", OURS)["summary"] == "the hold expired"
    run("r")
    assert filtered(pod, ["n1"]) is None
    assert pod_explain("research", "q", OURS)["state"] == "pending"


def test_a_claim_with_holders_and_waiting_pods() -> None:
    """VIEW-3 CLAIM-2 each pod of the claim, and a sentence for all."""
    assert claim_explain("research", "two", OURS)["summary"] == "nobody holds devices through the claim"
    run("p")
    assert filtered(pod_manifest("q", claim="two"), ["n1"]) is None
    told = claim_explain("research", "two", OURS)
    assert told["summary"] == "1 holder has devices through the claim; 1 waiting"
    assert [(pod["pod"], pod["state"]) for pod in told["pods"]] == [("p", "bound"), ("q", "pending")]
    assert all(event["message"] for event in told["timeline"])


@pytest.mark.parametrize("explain", [pod_explain, claim_explain])
def test_others_learn_nothing(explain: Any) -> None:
    """VIEW-6 what may not be seen and what is not there look the same."""
    run("two")
    assert explain("research", "two", OURS)
    with pytest.raises(NotFound) as hidden:
        explain("research", "two", THEIRS)
    with pytest.raises(NotFound) as missing:
        explain("other", "two", THEIRS)
    assert str(hidden.value).replace("research", "other") == str(missing.value)
    with pytest.raises(NotFound):
        explain("research", "nothing", OURS)


def test_why_others_lost_on_a_fleet_too_large_to_say_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-3 what filter left out, since it would have cost every pod, is worked out when somebody asks."""
    monkeypatch.setattr(sys.modules["allocations.scheduling.placement"], "EXPLAINED_UP_TO", 1)
    run("p")
    assert Allocation.objects.get().explanation == {}
    assert pod_explain("research", "p", OURS)["reasons"] == [{"reason": "fewer than 2 gpu devices", "nodes": 1}]


def test_a_claim_that_came_since_is_reported() -> None:
    """CLAIM-3 VIEW-3 a pod refused for a missing claim is not told so any longer than it is true."""
    late = pod_manifest("late", claim="late")
    assert filtered(late, ["n1"]) is None
    assert "does not exist" in pod_explain("research", "late", OURS)["summary"]
    GpuClaimFactory(name="late")
    assert "exists now" in pod_explain("research", "late", OURS)["summary"]


def test_a_claim_shows_each_device_of_its_waiting_pods() -> None:
    """VIEW-3 node by node and device by device, once for the pods that ask the same."""
    run("p")
    for name in ("q", "r"):
        assert filtered(pod_manifest(name, claim="two"), ["n1", "n2"]) is None
    told = {pod["pod"]: pod for pod in claim_explain("research", "two", OURS)["pods"]}
    (first,) = [pod for pod in (told["q"], told["r"]) if pod["nodes"]]
    (second,) = [pod for pod in (told["q"], told["r"]) if not pod["nodes"]]
    assert [(node["node"], [device["reason"] for device in node["devices"]]) for node in first["nodes"]] == [
        ("n1", ["in use, a whole device is asked"] * 2),
        ("n2", [""]),
    ]
    assert (first["same_as"], second["same_as"], second["nodes_total"]) == (None, first["pod"], 2)
    assert (
        second["device_reasons"]
        == first["device_reasons"]
        == [{"reason": "in use, a whole device is asked", "devices": 2}]
    )


@pytest.mark.parametrize("explain", [pod_explain, claim_explain])
def test_nodes_are_reported_in_pages(explain: Any) -> None:
    """VIEW-3 by name, none is left out, forwards and back; a node that came or went shifts nothing."""
    for number in range(245):
        NodeFactory(name=f"m{number:03}", gpus=1)
    names = sorted([f"m{number:03}" for number in range(245)] + ["n1", "n2"])
    GpuClaimFactory(name="three", spec={"devices": {"count": 3}})
    assert filtered(pod_manifest("q", claim="three"), names) is None

    def page(after: str, size: int = 100) -> dict[str, Any]:
        name = "q" if explain is pod_explain else "three"
        told: dict[str, Any] = explain("research", name, OURS, NodePage(after=after, size=size))
        return told if explain is pod_explain else told["pods"][0]

    first = page("")
    second = page(first["nodes_next"])
    third = page(second["nodes_next"])
    found = [node["node"] for one in (first, second, third) for node in one["nodes"]]
    assert found == names
    assert [len(one["nodes"]) for one in (first, second, third)] == [100, 100, 47]
    assert {one["nodes_total"] for one in (first, second, third)} == {247}
    assert (first["nodes_previous"], third["nodes_next"]) == (None, None)
    assert page(third["nodes_previous"])["nodes"] == second["nodes"]
    assert page(second["nodes_previous"])["nodes"] == first["nodes"]
    assert [node["node"] for node in page("m099x", size=2)["nodes"]] == ["m100", "m101"]
    beyond = page("z")
    assert (beyond["nodes"], beyond["nodes_next"]) == ([], None)
    assert page(beyond["nodes_previous"])["nodes"][-1]["node"] == "n2"
