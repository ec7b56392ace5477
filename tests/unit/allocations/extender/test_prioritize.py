"""prioritize: scores 0 to 10 in the engine's own order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pytest_django import Settings

from allocations.extender import views
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory

NAMES = ["full", "half", "empty", "small"]


@pytest.fixture
def world(db: None, settings: Settings) -> None:
    """`half` has one of its two GPUs taken, `empty` none, `small` has only one."""
    for name, gpus in (("full", 1), ("half", 2), ("empty", 2), ("small", 1)):
        NodeFactory(name=name, gpus=gpus)
    GpuClaimFactory(name="one")
    GpuClaimFactory(name="spread", spec={"devices": {"count": 1, "policy": "spread"}})
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    for name in ("full", "half"):
        pod = pod_manifest(f"on-{name}", claim="one")
        assert bound(pod, filtered(pod, [name])) == ""
    settings.GPUPLANE_EXTENDER_MODE = "advisory"


def scores(pod: Any, names: list[str] = NAMES) -> dict[str, int]:
    listed = json.loads(views.prioritize(json.dumps({"Pod": pod, "NodeNames": names}).encode()))
    assert [entry["Host"] for entry in listed] == names
    return {entry["Host"]: entry["Score"] for entry in listed}


@pytest.mark.parametrize(
    ("claim", "order"),
    [
        pytest.param("one", ["half", "empty", "small"], id="the fuller first"),
        pytest.param("spread", ["empty", "small", "half"], id="spread: the emptier first"),
        pytest.param("two", ["empty"], id="only one node has two"),
    ],
)
@pytest.mark.usefixtures("world")
def test_the_order_is_the_engines(claim: str, order: list[str]) -> None:
    """CLAIM-4 CLAIM-5 no constant score; who cannot serve gets 0."""
    told = scores(pod_manifest("p", claim=claim))
    assert sorted(order, key=lambda name: -told[name]) == order
    assert told[order[0]] == 10
    assert {name for name, score in told.items() if score == 0} == set(NAMES) - set(order)
    assert filtered_best(claim) == order[0]


def filtered_best(claim: str) -> str:
    """The node with the highest score, as filter would choose in decisive mode."""
    from django.test import override_settings

    with override_settings(GPUPLANE_EXTENDER_MODE="decisive"):
        return str(filtered(pod_manifest("q", claim=claim), NAMES))


@pytest.mark.usefixtures("world")
def test_a_pod_that_holds_devices_is_scored_there() -> None:
    """CLAIM-2 the node it has, and no other."""
    told = scores(pod_manifest("on-half", claim="one"))
    assert told == {"full": 0, "half": 10, "empty": 0, "small": 0}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_manifest("p"), id="asks for nothing"),
        pytest.param(pod_manifest("p", claim="nobody"), id="no such claim"),
        pytest.param(pod_manifest("p", claim="one", uid="a/b"), id="impossible uid"),
        pytest.param(None, id="no pod"),
    ],
)
@pytest.mark.usefixtures("world")
def test_nothing_to_rank(pod: Any) -> None:
    """CLAIM-3 0 for all, so that others' scores decide."""
    assert set(scores(pod, ["half", "unknown"]).values()) == {0}


@pytest.mark.usefixtures("db")
def test_unreadable() -> None:
    """An empty list is well formed."""
    assert views.prioritize(b"{") == b"[]"
