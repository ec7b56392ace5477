"""filter: decide and hold. Time is passed in or stepped; the world is a small fleet in SQLite."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from pytest_django import Settings

from allocations import ledger
from allocations.choices import State
from allocations.extender import reasons, views
from allocations.extender.pod_filter import candidates_of
from allocations.models import Allocation, PodRefusal
from allocations.pod_request import PodRequest, parse_pod_request
from allocations.scheduling.expired_holds import expire_holds
from allocations.scheduling.hold_duration import hold_seconds
from audit.models import Event
from claims.models import GpuClaim
from kube.objects import Pod
from tests.builders import fleet, node
from tests.extender import bound, filter_answer, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems

NAMES = ["n1", "n2"]
PVC = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


@pytest.fixture
def world(db: None) -> None:
    for name in NAMES:
        NodeFactory(name=name, gpus=1)
    GpuClaimFactory(name="one")


def later(**delta: float) -> datetime:
    return datetime.now(UTC) + timedelta(**delta)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({}, 30, id="nothing to wait for"),
        pytest.param({"volumes": [{"name": "tmp", "emptyDir": {}}]}, 30, id="a volume that is there at once"),
        pytest.param({"volumes": PVC}, 660, id="a volume claim"),
        pytest.param(
            {"volumes": [{"name": "s", "ephemeral": {"volumeClaimTemplate": {}}}]}, 660, id="ephemeral volume"
        ),
        pytest.param({"resourceClaims": [{"name": "nic"}]}, 660, id="a resource claim"),
    ],
)
def test_how_long_a_hold_lasts(world: None, spec: dict[str, Any], want: int) -> None:
    """LEASE-3 as long as kube-scheduler may wait between filter and bind, where no API server says whether it
    has to.
    """
    asks = parse_pod_request(msgspec.convert(pod_manifest("p", claim="one", **spec), Pod))
    assert isinstance(asks, PodRequest)
    assert hold_seconds(asks) == want


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [pytest.param({}, 30, id="plain"), pytest.param({"volumes": PVC}, 660, id="with a volume claim")],
)
@pytest.mark.usefixtures("world")
def test_a_hold_ends_in_its_time_and_not_before(spec: dict[str, Any], seconds: int) -> None:
    """LEASE-3 held until then, free and shunned by its pod after."""
    pod = pod_manifest("p", claim="one", **spec)
    assert filtered(pod, NAMES) == "n1"
    assert expire_holds(later(seconds=seconds - 5)) == 0
    assert filtered(pod_manifest("q", claim="one"), ["n1"]) is None
    assert expire_holds(later(seconds=seconds + 1)) == 1
    assert filtered(pod_manifest("q", claim="one"), ["n1"]) == "n1"
    assert filtered(pod, NAMES) == "n2"
    assert problems() == []


@pytest.mark.usefixtures("world")
def test_an_expired_hold_makes_room_before_anybody_is_refused() -> None:
    """LEASE-3 the beat need not have come by."""
    assert filtered(pod_manifest("p", claim="one"), ["n1"]) == "n1"
    Allocation.objects.update(hold_until=later(seconds=-1))
    assert filtered(pod_manifest("q", claim="one"), ["n1"]) == "n1"
    assert set(Allocation.objects.values_list("pod_name", "state")) == {("p", State.FAILED), ("q", State.HELD)}


@pytest.mark.usefixtures("world")
def test_shunning_ends() -> None:
    """LEASE-3 after five minutes the node is as good as any other for the pod."""
    pod = pod_manifest("p", claim="one")
    assert filtered(pod, NAMES) == "n1"
    expire_holds(later(minutes=1))
    Allocation.objects.update(ended_at=later(minutes=-6))
    assert filtered(pod, NAMES) == "n1"


@pytest.mark.usefixtures("world")
def test_the_only_node_is_not_shunned_for_ever() -> None:
    """LEASE-3 it ranks last, and last of one is first."""
    pod = pod_manifest("p", claim="one")
    assert filtered(pod, ["n1"]) == "n1"
    expire_holds(later(minutes=1))
    assert filtered(pod, ["n1"]) == "n1"


@pytest.mark.usefixtures("world")
def test_a_newer_filter_replaces_the_hold() -> None:
    """CLAIM-4 a pod has one hold, where its last filter decided."""
    pod = pod_manifest("p", claim="one")
    assert filtered(pod, ["n1"]) == "n1"
    assert filtered(pod, ["n2"]) == "n2"
    assert list(Allocation.objects.filter(state=State.HELD).values_list("node__name", flat=True)) == ["n2"]
    assert filtered(pod_manifest("q", claim="one"), ["n1"]) == "n1"
    assert problems() == []


@pytest.mark.usefixtures("world")
def test_the_same_question_prolongs_and_writes_no_second_event() -> None:
    """CLAIM-4 the same answer, the same row, a later end."""
    pod = pod_manifest("p", claim="one")
    first = filter_answer(pod, NAMES)
    before = Allocation.objects.get()
    assert filter_answer(pod, NAMES) == first
    after = Allocation.objects.get()
    assert after.pk == before.pk
    assert after.hold_until is not None
    assert before.hold_until is not None
    assert after.hold_until > before.hold_until
    assert Event.objects.filter(kind="allocation.held").count() == 1


@pytest.mark.usefixtures("world")
def test_a_bound_pod_is_answered_with_its_node_and_nothing_changes() -> None:
    """CLAIM-2 also when asked about other nodes only."""
    pod = pod_manifest("p", claim="one")
    assert bound(pod, filtered(pod, NAMES)) == ""
    before = list(Allocation.objects.values())
    assert filter_answer(pod, NAMES)["NodeNames"] == ["n1"]
    assert filter_answer(pod, ["n2"])["FailedAndUnresolvableNodes"] == {"n2": reasons.ELSEWHERE.text}
    assert list(Allocation.objects.values()) == before


@pytest.mark.usefixtures("world")
def test_a_pod_whose_last_attempt_is_being_undone_comes_again() -> None:
    """LEASE-3 every node is refused until then; evicting others would not help."""
    pod = pod_manifest("p", claim="one")
    assert bound(pod, filtered(pod, ["n1"])) == ""
    ledger.begin_release(
        allocation_id=Allocation.objects.get().pk,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason="test",
        now=later(),
        actor="test",
    )
    assert filter_answer(pod, NAMES)["FailedAndUnresolvableNodes"] == dict.fromkeys(NAMES, reasons.BEING_UNDONE.text)
    assert bound(pod, "n1") == reasons.BEING_UNDONE.text


@pytest.mark.usefixtures("world")
def test_a_refusal_is_kept_once_and_counted() -> None:
    """VIEW-3 CLAIM-3 the event is written when the answer changes, not each time it is given."""
    pod = pod_manifest("p", claim="nobody")
    assert filtered(pod, NAMES) is None
    assert filtered(pod, NAMES) is None
    refusal = PodRefusal.objects.get()
    assert (refusal.count, refusal.rule, refusal.claim_name) == (2, "claim-missing", "nobody")
    assert Event.objects.filter(kind="pod.refused").count() == 1
    GpuClaimFactory(name="nobody", spec={"devices": {"count": 9}})
    assert filtered(pod, NAMES) is None
    refusal.refresh_from_db()
    assert (refusal.count, refusal.rule) == (3, "")
    assert refusal.reasons == {"fewer than 9 gpu devices": 2}
    assert Event.objects.filter(kind="pod.refused").count() == 2


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"devices": {"count": 0}}, "spec.devices.count must be 1 to 1000", id="no devices"),
        pytest.param({"devices": []}, "spec.devices must be an object", id="a list"),
        pytest.param("text", "spec must be an object", id="text"),
        pytest.param({"devices": {"count": 1, "memoryratio": 5}}, "did you mean memoryRatio?", id="misspelt"),
    ],
)
@pytest.mark.usefixtures("world")
def test_a_claim_that_was_stored_malformed(spec: Any, want: str) -> None:
    """CLAIM-3 whatever the table holds, its pods wait with a reason and are not bound."""
    GpuClaimFactory(name="odd", spec=spec)
    answer = filter_answer(pod_manifest("p", claim="odd"), NAMES)
    assert answer["NodeNames"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == set(NAMES)
    assert answer["FailedAndUnresolvableNodes"]["n1"].startswith("GpuClaim odd is malformed: ")
    assert want in answer["FailedAndUnresolvableNodes"]["n1"]
    assert not Allocation.objects.exists()


@pytest.mark.usefixtures("world")
def test_two_dialects_in_one_pod() -> None:
    """DEV-3 refused with the rule, on every node."""
    pod = pod_manifest("p", claim="one", resources={"nvidia.com/gpu": "1"})
    told = filter_answer(pod, NAMES)["FailedAndUnresolvableNodes"]
    assert told == dict.fromkeys(NAMES, told["n1"])
    assert "ask in one way only" in told["n1"]


@pytest.mark.usefixtures("world")
def test_reasons_name_no_node_and_no_odd_number() -> None:
    """CLAIM-4 equal reasons count together in the pod's event."""
    for number, name in enumerate(NAMES):
        assert filtered(pod_manifest(f"p{number}", claim="one"), [name]) == name
    answer = filter_answer(pod_manifest("q", claim="one"), NAMES)
    assert answer["FailedNodes"] == dict.fromkeys(NAMES, "no whole gpu device free")


@pytest.mark.usefixtures("world")
def test_without_the_database_every_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-7 also a failing ledger leaves the pod unschedulable, not in error."""
    from django.db import OperationalError

    def away() -> None:
        raise OperationalError("gone")

    monkeypatch.setattr("allocations.fleet.current", away)
    answer = filter_answer(pod_manifest("p", claim="one"), NAMES)
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(NAMES, reasons.LEDGER_AWAY.text)


@pytest.mark.usefixtures("world")
def test_share_policy_of_the_settings(settings: Settings) -> None:
    """CLAIM-5 gpuspread puts shares on the emptiest device, gpupack on the fullest."""
    NodeFactory(name="n3", gpus=2)
    GpuClaim.objects.filter(name="one").update(spec={"devices": {"count": 1, "core": 30}})
    settings.GPUPLANE_SHARE = "gpuspread"
    for name in ("a", "b"):
        assert filtered(pod_manifest(name, claim="one"), ["n3"]) == "n3"
    assert set(Allocation.objects.values_list("devices__minor", flat=True)) == {0, 1}


@pytest.mark.parametrize(
    ("offered", "want"),
    [
        pytest.param(["n3", "n2", "n1"], "n1", id="all"),
        pytest.param(["n3", "n2", "x"], "n2", id="not the best, and one that is not registered"),
        pytest.param(["n3", "n2"], "n2", id="two of three"),
        pytest.param(["n3"], "n3", id="less than half"),
    ],
)
@pytest.mark.usefixtures("world")
def test_most_of_a_large_fleet_is_offered(offered: list[str], want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-4 the best node of all is chosen if it is offered, else the best of those that are."""
    monkeypatch.setattr("allocations.scheduling.placement.EXPLAINED_UP_TO", 0)
    NodeFactory(name="n3", gpus=2)
    assert filtered(pod_manifest("p", claim="one"), offered) == want
    assert not problems()


@pytest.mark.usefixtures("world")
def test_most_of_a_large_fleet_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-4 only nodes that are offered have reasons, whether another has room or none."""
    monkeypatch.setattr("allocations.scheduling.placement.EXPLAINED_UP_TO", 0)
    NodeFactory(name="n3", gpus=1)
    for name in NAMES:
        assert filtered(pod_manifest(f"on-{name}", claim="one"), [name]) == name
    answer = filter_answer(pod_manifest("p", claim="one"), [*NAMES, "x"])
    assert (answer["NodeNames"], sorted(answer["FailedNodes"])) == ([], NAMES)
    assert answer["FailedAndUnresolvableNodes"] == {"x": reasons.NOT_REGISTERED.text}


def test_which_rows_are_asked_about() -> None:
    """CLAIM-4 everything, a part, strangers and repeats."""
    picture = fleet(node("a", gpus=1), node("b", gpus=1))
    assert candidates_of(picture, ["b", "a"]).rows is None
    some = candidates_of(picture, ["b", "x", "b"])
    assert some.rows is not None
    assert np.unique(some.rows).tolist() == [1]
    assert some.unknown == ["x"]
    none = candidates_of(picture, [])
    assert (none.rows is not None, list(none.unknown)) == (True, [])


@pytest.mark.usefixtures("world")
def test_no_nodes_asked() -> None:
    """SCALE-7 nothing to choose from is no error; what cannot be read at all is one."""
    answer = filter_answer(pod_manifest("p", claim="one"), [])
    assert (answer["NodeNames"], answer["Error"]) == ([], "")
    assert json.loads(views.filter(b"{}"))["Error"] == "the request cannot be read: the request carries no pod"
