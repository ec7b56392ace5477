"""VIEW-5: pagination, and what a list costs."""

import base64
import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from allocations.models import Allocation, AllocationDevice, Lease, PodRefusal
from audit.choices import EventKind
from audit.events import NewEvent
from audit.services import record_many
from claims.models import GpuClaim
from nodes.choices import Mode
from nodes.models import Device
from tests.factories import NodeFactory
from tests.groups import share
from tests.integration.rest.conftest import NOW, inventory

pytestmark = pytest.mark.django_db


def claims(count, namespace="team-a"):
    GpuClaim.objects.bulk_create(
        GpuClaim(
            namespace=namespace,
            name=f"c-{number:04}",
            spec={"devices": {"count": 1}},
            resource_version="1",
            created_at=NOW,
            changed_at=NOW,
        )
        for number in range(count)
    )


def allocations(count, *, namespace="team-a", state="bound", claim=None):
    """Each holds a share of the one device there is."""
    device = Device.objects.order_by("id")[0]
    for number in range(count):
        allocation = Allocation.objects.create(
            state=state,
            namespace=namespace,
            pod_name=f"p-{namespace}-{number}",
            pod_uid=f"u-{namespace}-{number}",
            holder=f"{namespace}/p-{number}/u-{number}",
            node=device.node,
            claim=claim,
            claim_name=claim.name if claim else "",
            dialect="gpuclaim",
            request={},
            created_at=NOW + timedelta(seconds=number // 3),
            bound_at=NOW + timedelta(seconds=number),
            changed_at=NOW,
        )
        AllocationDevice.objects.create(
            allocation=allocation,
            device=device,
            uuid=device.uuid,
            type="gpu",
            minor=0,
            core_percent=1,
            memory_bytes=1 << 20,
            whole=False,
        )
    Device.objects.filter(pk=device.pk).update(core_used=min(count, 100), memory_used=count << 20)


def walk(api, path):
    """Every page forwards, then every page back."""
    pages = []
    while path:
        status, page = api.get(path)
        assert status == 200
        pages.append(page)
        path = page["next"]
    backwards = [pages[-1]]
    while backwards[-1]["previous"]:
        backwards.append(api.get(backwards[-1]["previous"])[1])
    return pages, backwards


def test_pages_follow_one_another_and_lead_back(operator):
    """VIEW-5 every row once, in order, in both directions."""
    claims(25)
    pages, backwards = walk(operator, "claims/?page_size=10")
    names = [[row["metadata"]["name"] for row in page["results"]] for page in pages]
    assert [len(page) for page in names] == [10, 10, 5]
    assert names == [[f"c-{number:04}" for number in range(start, min(start + 10, 25))] for start in (0, 10, 20)]
    assert [[row["metadata"]["name"] for row in page["results"]] for page in reversed(backwards)] == names
    assert (pages[0]["previous"], pages[-1]["next"]) == (None, None)
    assert "page_size=10" in pages[0]["next"]


def test_rows_that_come_and_go_shift_nothing(operator):
    """VIEW-5 keyset: a page starts after the last row seen."""
    claims(20)
    _, first = operator.get("claims/?page_size=10")
    GpuClaim.objects.filter(name__in=["c-0003", "c-0009"]).delete()
    _, second = operator.get(first["next"])
    assert [row["metadata"]["name"] for row in second["results"]] == [f"c-{n:04}" for n in range(10, 20)]


def test_equal_times_are_distinguished(admin):
    """VIEW-5 rows made in the same moment are not lost between pages."""
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    allocations(20)
    pages, _ = walk(admin, "allocations/?page_size=4")
    uids = [row["uid"] for page in pages for row in page["results"]]
    assert len(set(uids)) == len(uids) == 20
    created = [row["created_at"] for page in pages for row in page["results"]]
    assert created == sorted(created, reverse=True)


def test_page_size_is_a_hundred_and_at_most_a_thousand(operator):
    """VIEW-5 how long a page is, and how long it may be."""
    claims(1005)
    assert len(operator.get("claims/")[1]["results"]) == 100
    assert len(operator.get("claims/?page_size=1000")[1]["results"]) == 1000
    assert len(operator.get("claims/?page_size=5000")[1]["results"]) == 1000


def cursor(*values):
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "path", ["claims/", "allocations/", "nodes/", "devices/", "events/", "leases/", "pods/", "reservations/"]
)
@pytest.mark.parametrize(
    "values",
    [
        pytest.param((), id="nothing"),
        pytest.param((0,), id="no position"),
        pytest.param((2, "a", "b"), id="no direction"),
        pytest.param((0, None, None), id="nulls"),
        pytest.param((0, None), id="null"),
        pytest.param((0, "\x00", "\x00"), id="NUL twice"),
        pytest.param((0, [], {}), id="containers"),
        pytest.param((0, "2026-99-99", "x"), id="no time"),
        pytest.param((0, "2026-01-01T00:00:00", "x"), id="a time without a zone"),
        pytest.param((0, "0001-01-01T00:00:00+14:00", 1), id="before all years in UTC"),
        pytest.param((0, "9999-12-31T23:59:59-14:00", 1), id="after all years in UTC"),
        pytest.param((0, "0001-01-01T00:00:00+14:00", "00000000-0000-0000-0000-000000000001"), id="the same, by UUID"),
        pytest.param((0, "0001-01-01T00:00:00Z", "00000000-0000-0000-0000-000000000001"), id="the first moment"),
        pytest.param((0, 2**70), id="huge number"),
        pytest.param((0, True), id="flag"),
        pytest.param((0, "1", "2", "3"), id="too long"),
    ],
)
def test_a_cursor_of_ones_own_making_is_refused_or_read(admin, path, values):
    """VIEW-5 whatever stands in a cursor, it is no fault."""
    assert admin.get(f"{path}?cursor={cursor(*values)}")[0] in {200, 400}


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_cursor_beyond_all_years_is_refused(admin, when):
    """VIEW-5 a time that UTC has no year for is none that a list gave."""
    status, problem = admin.get(f"allocations/?cursor={cursor(0, when, '00000000-0000-0000-0000-000000000001')}")
    assert (status, problem["rule"]) == (400, "cursor")


def cost(api, path):
    with CaptureQueriesContext(connection) as queries:
        status, page = api.get(path)
    assert status == 200
    return len(queries), len(page["results"])


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("nodes/", 1, id="nodes"),
        pytest.param("devices/", 2, id="devices: rows, holders"),
        pytest.param("claims/", 4, id="claims: rows, counts, newest, their devices"),
        pytest.param("allocations/", 2, id="allocations: rows, devices"),
        pytest.param("events/", 1, id="events"),
        pytest.param("leases/", 1, id="leases"),
        pytest.param("pods/", 1, id="pods that wait"),
        pytest.param("reservations/", 3, id="reservations: groups, devices, sharers"),
    ],
)
def test_a_list_costs_the_same_whatever_it_holds(admin, path, want):
    """VIEW-5 query counts, once the token is known."""

    def more(number):
        admin.put(f"nodes/n{number}/inventory/", inventory(f"n{number}"))
        claim = GpuClaim.objects.create(namespace="team-a", name=f"m-{number}", spec={}, created_at=NOW, changed_at=NOW)
        allocations(3, namespace=f"ns-{number}", claim=claim)
        Lease.objects.create(
            name=f"gpu-n{number}-0", holder_identity="a/b/c", node="n1", device_uuid="x", acquired_at=NOW
        )
        PodRefusal.objects.create(
            pod_uid=f"u-{number}", namespace="team-a", pod_name=f"w-{number}", first_at=NOW, last_at=NOW
        )
        NodeFactory(name=f"p{number}", gpus=2, mode=Mode.DEVICE_PLUGIN)
        for pod in ("one", "two", "three"):
            share(f"{pod}-{number}", node=f"p{number}")

    more(1)
    first, few = cost(admin, path)
    for number in range(2, 5):
        more(number)
    second, many = cost(admin, path)
    assert many > few > 0
    assert first == second == want


def test_a_claim_shows_the_newest_hundred_and_counts_all(operator, admin):
    """CLAIM-2 status.allocated counts, status.allocations shows the newest hundred, REST all."""
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    claims(2)
    claim = GpuClaim.objects.get(name="c-0000")
    allocations(99, claim=claim)
    allocations(20, namespace="held", claim=claim, state="held")
    allocations(20, namespace="ended", claim=claim, state="released")
    _, shown = operator.get("claims/team-a/c-0000/")
    assert (shown["status"]["allocated"], shown["status"]["phase"]) == (99, "Allocated")
    assert len(shown["status"]["allocations"]) == 99
    allocations(6, namespace="more", claim=claim)
    _, shown = operator.get("claims/team-a/c-0000/")
    assert shown["status"]["allocated"] == 105
    assert len(shown["status"]["allocations"]) == 100
    newest = shown["status"]["allocations"][0]
    assert newest["pod"] in {"p-team-a-96", "p-team-a-97", "p-team-a-98"}
    assert newest["devices"] == [{"minor": 0, "uuid": "GPU-n1-0", "core": 1, "memory": 1 << 20}]
    assert operator.get("claims/team-a/c-0001/")[1]["status"]["allocations"] == []


def test_holders_in_unseen_namespaces_are_taken_without_names(operator, outsider, admin):
    """VIEW-6 a device shows that it is taken, not by whom."""
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    allocations(1)
    [seen] = operator.get("devices/")[1]["results"][0]["holders"]
    assert (seen["namespace"], seen["pod"], seen["core"]) == ("team-a", "p-team-a-0", 1)
    [hidden] = outsider.get("devices/")[1]["results"][0]["holders"]
    assert hidden == {
        "uid": None,
        "namespace": None,
        "pod": None,
        "holder": None,
        "claim": None,
        "state": "bound",
        "core": 1,
        "memory": 1 << 20,
        "whole": False,
    }
    assert outsider.get("nodes/n1/")[1]["inventory"][0]["holders"] == [hidden]


def test_leases_hide_holders_in_unseen_namespaces(operator, outsider, admin):
    """VIEW-6 the same for leases."""
    Lease.objects.create(
        name="gpu-n1-0", holder_identity="team-a/p/u", node="n1", device_uuid="GPU-n1-0", acquired_at=NOW
    )
    Lease.objects.create(
        name="gpu-n1-1",
        holder_identity="gpuplane/shares",
        sharers=["team-a/p/u", "team-b/q/v"],
        node="n1",
        device_uuid="GPU-n1-1",
        acquired_at=NOW,
    )

    def shown(api):
        return [(row["name"], row["holder_identity"], row["sharers"]) for row in api.get("leases/")[1]["results"]]

    assert shown(admin)[1] == ("gpu-n1-1", "gpuplane/shares", ["team-a/p/u", "team-b/q/v"])
    assert shown(operator)[0] == ("gpu-n1-0", "team-a/p/u", [])
    assert shown(outsider) == [("gpu-n1-0", None, []), ("gpu-n1-1", "gpuplane/shares", [None, "team-b/q/v"])]
    pages, _ = walk(admin, "leases/?page_size=1")
    assert [row["name"] for page in pages for row in page["results"]] == ["gpu-n1-0", "gpu-n1-1"]
    assert len(admin.get("leases/?device_uuid=GPU-n1-1")[1]["results"]) == 1


@pytest.mark.parametrize(
    ("query", "want"),
    [
        ("", 6),
        ("state=bound", 3),
        ("live=true", 3),
        ("live=false", 3),
        ("namespace=team-a", 3),
        ("pod_uid=u-team-a-1", 1),
        ("pod=p-team-b-2", 1),
        ("node=n1", 6),
        ("node=n2", 0),
        ("claim=c-0000", 3),
    ],
)
def test_allocations_are_filtered(admin, query, want):
    """VIEW-5 filtering."""
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    claims(1)
    allocations(3, claim=GpuClaim.objects.get())
    allocations(3, namespace="team-b", state="failed")
    assert len(admin.get(f"allocations/?{query}")[1]["results"]) == want


@pytest.mark.parametrize(
    ("query", "want"),
    [
        ("", 4),
        ("node=n1", 2),
        ("type=gpu", 4),
        ("type=rdma", 0),
        ("model=H100", 4),
        ("uuid=GPU-n2-1", 1),
        ("healthy=false", 1),
        ("healthy=true", 3),
        ("held=true", 1),
        ("held=false", 3),
        ("presence=vanished", 0),
    ],
)
def test_devices_are_filtered(admin, query, want):
    """VIEW-5 filtering."""
    for name in ("n1", "n2"):
        admin.put(f"nodes/{name}/inventory/", inventory(name))
    Device.objects.filter(uuid="GPU-n1-0").update(healthy=False)
    Device.objects.filter(uuid="GPU-n2-0").update(core_used=10)
    assert len(admin.get(f"devices/?{query}")[1]["results"]) == want


def test_events_are_filtered_and_access_is_for_admins(admin, operator):
    """VIEW-6 an audit trail of every change, by object, kind, actor and time."""
    kinds = [
        (EventKind.CLAIM_CREATED, "team-a"),
        (EventKind.CLAIM_DELETED, "team-a"),
        (EventKind.SIGNED_IN, ""),
        (EventKind.NODE_HEALTH, ""),
    ]
    record_many(
        [
            NewEvent(
                kind=kind, message="m", actor="someone", at=NOW + timedelta(minutes=n), namespace=namespace, name="x"
            )
            for n, (kind, namespace) in enumerate(kinds)
        ]
    )

    def count(api, query=""):
        status, page = api.get(f"events/?{query}")
        assert status == 200, page
        return len(page["results"])

    assert (count(admin), count(operator)) == (4, 3)
    assert count(admin, "kind=claim.") == 2
    assert count(admin, "kind=claim.created") == 1
    assert count(admin, "actor=someone&name=x&namespace=team-a") == 2
    assert count(admin, "since=2026-11-21T09:01:00Z&until=2026-11-21T09:03:00Z") == 2
    assert [row["kind"] for row in admin.get("events/")[1]["results"]] == [kind.value for kind, _ in reversed(kinds)]


def test_the_fleet_in_numbers(admin, outsider):
    """VIEW-1 the summary counts what is there, and one's own allocations."""
    admin.put("nodes/n1/inventory/", inventory())
    admin.put("nodes/n2/inventory/", inventory("n2"))
    Device.objects.filter(uuid="GPU-n2-1").update(healthy=False)
    allocations(2)
    with CaptureQueriesContext(connection) as queries:
        _, summary = admin.get("fleet/summary/")
    assert len(queries) == 4
    assert summary["nodes"] == {"total": 2, "ready": 2}
    [gpus] = summary["devices"]
    assert {key: gpus[key] for key in ("total", "used", "free", "unhealthy")} == {
        "total": 4,
        "used": 1,
        "free": 2,
        "unhealthy": 1,
    }
    assert (gpus["memory_total"], gpus["memory_used"], gpus["core_used"]) == (4 * (80 << 30), 2 << 20, 2)
    assert summary["models"][0]["model"] == "H100"
    assert summary["allocations"]["bound"] == 2
    assert outsider.get("fleet/summary/")[1]["allocations"]["bound"] == 0
