"""REST of groups behind reservation pods, and the memory of single GPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.protocol import COLUMNS
from allocations.choices import GroupState
from allocations.ledger.groups import BACK_OFF, end_groups, put_off
from allocations.models import Allocation, GpuGroup
from nodes.choices import Mode
from nodes.live import reads
from nodes.live.samples import OLD_SECONDS, SampleView
from nodes.models import Device
from tests.factories import H100_BYTES, NodeFactory
from tests.groups import NAMESPACE, leave, leaving, share, whole
from tests.integration.rest.conftest import Api

pytestmark = pytest.mark.django_db
HALF_BYTES = H100_BYTES // 2


@pytest.fixture(autouse=True)
def _nodes(db: None) -> None:
    for name in ("n1", "n2"):
        NodeFactory(name=name, gpus=4, mode=Mode.DEVICE_PLUGIN)


def measured(monkeypatch: pytest.MonkeyPatch, used: Mapping[str, int], *, age: float = 1.0) -> None:
    """Node n1 reports so much memory in use on these GPUs."""
    uuids = tuple(Device.objects.filter(node__name="n1").order_by("minor").values_list("uuid", flat=True))
    columns: dict[str, tuple[int | None, ...]] = {name: (None,) * len(uuids) for name in COLUMNS}
    columns["memory_used_bytes"] = tuple(used.get(uuid) for uuid in uuids)
    now = time.time()
    sample = SampleView(node="n1", boot="b", seq=1, time=now, received_at=now - age, devices=uuids, **columns)
    monkeypatch.setattr(reads, "read_latest", lambda: {"n1": sample})


def one(api: Api, name: str) -> dict[str, Any]:
    status, body = api.get(f"reservations/{name}/")
    assert status == 200, body
    return dict(body)


def names(api: Api, query: str = "") -> list[str]:
    status, page = api.get(f"reservations/?{query}")
    assert status == 200, page
    return [row["name"] for row in page["results"]]


def test_a_group_and_its_sharers(admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-6 VIEW-5 a flat object: node, state, UUIDs, pod, sharers, and the memory allocated, used, releasing and
    there of each GPU.
    """
    group = share("one", node="n1", namespace="team-a", told=["GPU-n1-2"])
    assert share("two", node="n1", namespace="team-a").name == group.name
    measured(monkeypatch, {"GPU-n1-2": 7 << 30})
    leaving("two")
    shown = one(admin, group.name)
    sharers = [
        {
            "uid": str(Allocation.objects.get(pod_name=pod).pk),
            "namespace": "team-a",
            "pod": pod,
            "state": state,
            "core": 50,
            "memory": HALF_BYTES,
        }
        for pod, state in (("one", "bound"), ("two", "releasing"))
    ]
    assert datetime.fromisoformat(str(shown.pop("since"))) == GpuGroup.objects.get().changed_at
    assert shown == {
        "name": group.name,
        "node": "n1",
        "state": "ready",
        "device": ["GPU-n1-2"],
        "gpus": 1,
        "shared": True,
        "pod": {"namespace": NAMESPACE, "name": f"gpu-reservation-n1-{group.name}", "uid": group.pod_uid},
        "sharers": sharers,
        "sharers_hidden": 0,
        "memory": [
            {
                "uuid": "GPU-n1-2",
                "allocated": H100_BYTES,
                "used": 7 << 30,
                "releasing": HALF_BYTES,
                "total": H100_BYTES,
            }
        ],
        "reason": "its GPU is GPU-n1-2",
        "retries": 0,
        "retry_at": None,
    }
    assert admin.get("reservations/?node=n1")[1]["results"] == [one(admin, group.name)]


def test_a_group_that_knows_no_gpu_yet_names_none(admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-6 until the reservation pod has told its GPU, the one that counts as used is a guess: no UUID is shown."""
    group = share("one", node="n1", state=GroupState.WANTED)
    measured(monkeypatch, dict.fromkeys(Device.objects.values_list("uuid", flat=True), 1 << 30))
    shown = one(admin, group.name)
    assert (shown["state"], shown["device"], shown["pod"]) == (
        "wanted",
        [],
        {"namespace": NAMESPACE, "name": group.pod_name, "uid": None},
    )
    assert shown["memory"] == [
        {"uuid": None, "allocated": HALF_BYTES, "used": None, "releasing": 0, "total": H100_BYTES}
    ]


def test_whole_gpus_are_one_group_with_a_memory_each(admin: Api) -> None:
    """SHARE-6 whole GPUs: one group, one holder, as many GPUs."""
    group = share("large", node="n1", request=whole(3))
    shown = one(admin, group.name)
    assert (shown["gpus"], shown["shared"]) == (3, False)
    assert sorted(part["uuid"] for part in shown["memory"]) == sorted(shown["device"]) == sorted(group.uuids)
    assert [part["allocated"] for part in shown["memory"]] == [H100_BYTES] * 3
    ((core, memory),) = [(sharer["core"], sharer["memory"]) for sharer in shown["sharers"]]
    assert (core, memory) == (300, 3 * H100_BYTES)


def test_an_unprotected_group_says_why_and_when_it_is_tried_again(admin: Api) -> None:
    """SHARE-7 state, reason, and the next reservation pod's time."""
    now = datetime.now(UTC)
    group = share("one", node="n1", state=GroupState.UNPROTECTED)
    put_off(group.pk, now=now)
    shown = one(admin, group.name)
    assert (shown["state"], shown["reason"], shown["retries"]) == ("unprotected", "its reservation pod is gone", 1)
    assert datetime.fromisoformat(str(shown["retry_at"])) == now + BACK_OFF[0]
    assert len(shown["sharers"]) == 1


def test_sharers_of_other_teams_are_counted(operator: Api, outsider: Api, viewer: Api) -> None:
    """SHARE-6 VIEW-6 groups are for everybody who is signed in, as devices; sharers only for those who see their
    namespace.
    """
    group = share("one", node="n1", namespace="team-a")
    share("two", node="n1", namespace="team-b")
    for api, pods in ((operator, ["one"]), (viewer, ["one"]), (outsider, ["two"])):
        shown = one(api, group.name)
        assert [sharer["pod"] for sharer in shown["sharers"]] == pods
        assert shown["sharers_hidden"] == 1
        assert "team-b" not in str(shown) or api is outsider
        assert shown["memory"][0]["allocated"] == H100_BYTES


def test_groups_are_filtered_and_paged(admin: Api) -> None:
    """VIEW-5 by node and state, the oldest first; one that is gone stays for an hour."""
    now = datetime.now(UTC)
    made = [
        share(pod, node=node, request=whole(1), now=now + timedelta(seconds=number))
        for number, (pod, node) in enumerate([("a", "n1"), ("b", "n2"), ("c", "n1")])
    ]
    gone = made[2]
    leave("c")
    end_groups([gone.pk], now=now, actor="test")
    first, second, third = (group.name for group in made)
    assert names(admin) == [first, second, third]
    assert (names(admin, "node=n1"), names(admin, "node=n2"), names(admin, "node=n3")) == ([first, third], [second], [])
    assert (names(admin, "state=ready"), names(admin, "state=gone")) == ([first, second], [third])
    assert admin.get("reservations/?state=odd")[0] == 400
    _, page = admin.get("reservations/?page_size=2")
    assert [row["name"] for row in page["results"]] == [first, second]
    assert [row["name"] for row in admin.get(page["next"])[1]["results"]] == [third]
    shown = one(admin, third)
    assert (shown["state"], shown["device"], shown["sharers"], shown["memory"]) == ("gone", gone.uuids, [], [])


@pytest.mark.parametrize("name", ["nobody", "x" * 300, "%00"])
def test_there_is_no_such_group(admin: Api, name: str) -> None:
    assert admin.get(f"reservations/{name}/")[0] in {400, 404}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_groups_are_read_only(admin: Api, method: str) -> None:
    """VIEW-5 nothing of a group is written over REST."""
    group = share("one", node="n1")
    for path in ("reservations/", f"reservations/{group.name}/"):
        assert admin.call(method, path, {})[0] == 405
    assert GpuGroup.objects.get().state == GroupState.READY


def test_the_memory_of_a_device(admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-6 every GPU says what of its memory is allocated, measured and being released, and its group's name; what
    is old is not known.
    """
    group = share("one", node="n1", told=["GPU-n1-1"])
    share("two", node="n1")
    leaving("one")
    measured(monkeypatch, {"GPU-n1-1": 3 << 30})

    def shown(uuid: str) -> tuple[object, ...]:
        (row,) = admin.get(f"devices/?uuid={uuid}")[1]["results"]
        (same,) = [one for one in admin.get("nodes/n1/")[1]["inventory"] if one["uuid"] == uuid]
        keys = ("memory_used", "memory_measured", "memory_releasing", "memory", "reservation")
        assert [row[key] for key in keys] == [same[key] for key in keys]
        return tuple(row[key] for key in keys)

    assert shown("GPU-n1-1") == (H100_BYTES, 3 << 30, HALF_BYTES, H100_BYTES, group.name)
    assert shown("GPU-n1-0") == (0, None, 0, H100_BYTES, None)
    measured(monkeypatch, {"GPU-n1-1": 3 << 30}, age=OLD_SECONDS + 1)
    assert shown("GPU-n1-1")[1] is None
