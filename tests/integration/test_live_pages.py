"""Pages and addresses of what devices do and did: who sees processes and holders, what charts are given, what is
exported.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis
from django.test import Client
from django.utils import timezone

from access.actors import SYSTEM
from access.choices import Role
from agent.protocol import COLUMNS, DeviceDetails, LinkDetails, MigDetails, ProcessDetails
from allocations import overviews
from allocations.choices import State
from allocations.models import Allocation, AllocationDevice
from gpuplane.pages import slices
from nodes.history import figures, ring
from nodes.history.rollups import MINUTE
from nodes.history.totals import Totals
from nodes.live.samples import DETAILS_KEY, SAMPLES_KEY, DetailsView, SampleView
from nodes.models import Device, FleetRollup, Node, Rollup
from tests.extender import bound, filtered, pod_manifest
from tests.factories import DeviceFactory, GpuClaimFactory, NodeFactory, UserFactory

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]
AsUser = Callable[..., Client]


@pytest.fixture
def node(ledger_db: Any) -> Node:
    """research holds the first GPU, secret the second, nobody the third."""
    made = NodeFactory(name="n1", gpus=3, labels={"pool": "training"})
    for namespace in ("research", "secret"):
        GpuClaimFactory(namespace=namespace, name="own")
        pod = pod_manifest(f"{namespace}-pod", namespace=namespace, claim="own")
        assert bound(pod, filtered(pod, ["n1"])) == ""
    return made


@pytest.fixture
def told(node: Node, redis_url: str, settings: Any) -> Iterator[redis.Redis]:
    """A Redis in which the node's agent has said details, and a sample half a minute ago."""
    settings.GPUPLANE_REDIS_URL = redis_url
    connection = redis.Redis.from_url(redis_url)
    uuids = tuple(device.uuid for device in gpus(node))
    details = tuple(
        DeviceDetails(
            [LinkDetails(0, True, uuids[1]), LinkDetails(1, False, "switch", 77, 0, 0)],
            12,
            1,
            [ProcessDetails(4711 + place, f"trainer-{place}", 2**30)],
            [MigDetails("MIG-7", "1g.10gb", 10 * 2**30)],
        )
        for place in range(3)
    )
    now = timezone.now().timestamp()
    connection.hset(DETAILS_KEY, "n1", msgspec.msgpack.encode(DetailsView("n1", now, uuids, details)))
    columns = dict.fromkeys(COLUMNS, (None,) * 3) | {"utilisation_percent": (10, 20, None)}
    view = SampleView("n1", "b", 1, now, now, uuids, **columns)
    connection.hset(SAMPLES_KEY, "n1", msgspec.msgpack.encode(view))
    ring.append(connection, ring.pack([view]), oldest=None)
    yield connection
    connection.close()


@pytest.fixture
def as_user(client: Client) -> AsUser:
    def sign_in(role: Role = Role.ADMIN, *namespaces: str) -> Client:
        client.force_login(UserFactory(role=role, namespaces=namespaces))
        return client

    return sign_in


def gpus(node: Node) -> list[Device]:
    return list(Device.objects.filter(node=node, type="gpu").order_by("minor"))


def minute_of(node: Node, percent: int) -> None:
    """A minute, ten minutes ago, in which the first GPU was measured."""
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=10)
    column = figures.Column((60,), (percent * 10,), (percent + 5,))
    body = figures.pack(figures.Figures((gpus(node)[0].uuid,), {"utilisation_percent": column}))
    Rollup.objects.create(node=node, seconds=MINUTE, start=start, body=body)
    whole = Totals(gpus=3, held=2, measured=1, used=percent / 100, memory=9, memory_measured=3, memory_used=2)
    groups = {"all": whole, "model:H100": Totals(gpus=3)}
    FleetRollup.objects.create(seconds=MINUTE, start=start, groups=msgspec.to_builtins(groups))


def paths(node: Node) -> list[str]:
    pk = gpus(node)[0].pk
    return [
        f"/devices/{pk}/",
        f"/devices/{pk}/state/",
        f"/devices/{pk}/history/",
        f"/devices/{pk}/history.csv",
        "/nodes/n1/history/?columns=power_watts",
        "/fleet/history/",
        "/fleet/history.csv",
        "/fleet/devices.csv",
        "/usage/",
        "/usage/idle/",
    ]


def test_who_may_look(client: Client, as_user: AsUser, node: Node, told: redis.Redis) -> None:
    """VIEW-2 VIEW-6 nobody unknown, every role; nothing is kept in a cache on the way."""
    for path in paths(node):
        assert client.get(path).status_code == 302, path
    for role in Role:
        signed_in = as_user(role, "research")
        for path in paths(node):
            answer = signed_in.get(path)
            assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store"), path


@pytest.mark.parametrize(
    "path",
    [
        "/devices/999999/",
        "/devices/999999/state/",
        "/devices/999999/history/",
        "/devices/999999/history.csv",
        "/nodes/n9/history/",
    ],
)
def test_unknown_names_are_404(as_user: AsUser, path: str) -> None:
    assert as_user().get(path).status_code == 404


@pytest.mark.parametrize(
    ("namespaces", "want"),
    [
        pytest.param(["research"], {0}, id="a team sees processes of GPUs that it alone holds"),
        pytest.param(["research", "secret"], {0, 1}, id="one of both teams sees both"),
        pytest.param([], set(), id="one of no team sees none"),
    ],
)
def test_processes_are_for_those_who_see_all_holders(
    as_user: AsUser, node: Node, told: redis.Redis, namespaces: list[str], want: set[int]
) -> None:
    """VIEW-6 process names tell what a team runs; a process has no owner that we know, so all holders count."""
    client = as_user(Role.VIEWER, *namespaces)
    pages = [client.get(f"/devices/{device.pk}/").content.decode() for device in gpus(node)]
    assert {place for place, text in enumerate(pages) if f"trainer-{place}" in text} == want
    assert all("1 down" in text for text in pages)


def test_a_devices_page(as_user: AsUser, node: Node, told: redis.Redis) -> None:
    """VIEW-1 VIEW-2 holder, links with their far ends, errors, processes, MIG devices; strangers' processes for admins
    only.
    """
    first, second, free = gpus(node)
    client = as_user(Role.ADMIN)
    text = client.get(f"/devices/{first.pk}/").content.decode()
    for words in (
        "research/research-pod",
        "GPU 1",
        "NVSwitch",
        "12 corrected",
        "1 uncorrected",
        "trainer-0",
        "1g.10gb",
        "77",
    ):
        assert words in text, words
    Device.objects.filter(pk=free.pk).update(stranger="somebody")
    assert "trainer-2" in client.get(f"/devices/{free.pk}/state/").content.decode()
    assert "trainer-2" not in as_user(Role.OPERATOR, "research").get(f"/devices/{free.pk}/state/").content.decode()
    second.refresh_from_db()


def test_processes_of_before_are_not_shown_as_those_of_now(as_user: AsUser, node: Node, told: redis.Redis) -> None:
    """VIEW-6 an agent that fell silent, or has not told since the holder came, says nothing of who runs what now."""
    first = gpus(node)[0]
    client = as_user(Role.VIEWER, "research")
    path = f"/devices/{first.pk}/state/"
    assert "trainer-0" in client.get(path).content.decode()
    Allocation.objects.filter(namespace="research").update(bound_at=timezone.now() + timedelta(seconds=5))
    text = client.get(path).content.decode()
    assert "trainer-0" not in text
    assert "does not say which processes" in text
    Allocation.objects.filter(namespace="research").update(bound_at=timezone.now() - timedelta(hours=1))
    assert "trainer-0" in client.get(path).content.decode()
    raw = told.hget(SAMPLES_KEY, "n1")
    assert isinstance(raw, bytes)
    old = msgspec.structs.replace(msgspec.msgpack.decode(raw, type=SampleView), received_at=1.0)
    told.hset(SAMPLES_KEY, "n1", msgspec.msgpack.encode(old))
    assert "trainer-0" not in client.get(path).content.decode()


@pytest.mark.parametrize("page", ["node", "device"])
def test_a_page_with_a_stream_asks_for_nothing_by_the_clock(as_user: AsUser, node: Node, page: str) -> None:
    """VIEW-1 its parts are fetched when the stream says that they changed."""
    path = "/nodes/n1/" if page == "node" else f"/devices/{gpus(node)[0].pk}/"
    text = as_user(Role.ADMIN).get(path).content.decode()
    _, _, content = text.partition('<main class="page-body"')
    triggers = re.findall(r'hx-trigger="([^"]*)"', content)
    assert triggers
    assert set(triggers) == {"changed"}


def test_without_redis_pages_say_what_they_do_not_know(as_user: AsUser, node: Node, settings: Any) -> None:
    """VIEW-1 the ledger's part is there; what agents say is said to be unknown."""
    settings.GPUPLANE_REDIS_URL = "unix:///nonexistent/redis.sock"
    device = gpus(node)[0]
    client = as_user()
    text = client.get(f"/devices/{device.pk}/").content.decode()
    assert "research/research-pod" in text
    assert "does not say which processes" in text
    assert client.get(f"/devices/{device.pk}/history/?range=3m").json()["times"] == []
    assert client.get("/nodes/n1/history/?range=3m&columns=power_watts").json()["times"] == []


def test_history_for_charts(as_user: AsUser, node: Node, told: redis.Redis) -> None:
    """VIEW-1 the last seconds from the ring, longer ranges from the database, of one device, a node, the fleet."""
    minute_of(node, 40)
    device = gpus(node)[0]
    client = as_user()
    live = client.get(f"/devices/{device.pk}/history/").json()
    assert (live["range"], live["step"]) == ("3m", 1)
    assert live["columns"] == {"utilisation_percent": {"mean": [10.0], "max": [10.0]}}
    hour = client.get(f"/devices/{device.pk}/history/?range=1h").json()
    assert (hour["step"], hour["seconds"]) == (60, 3600)
    assert hour["columns"] == {"utilisation_percent": {"mean": [40.0], "max": [45.0]}}
    of_node = client.get("/nodes/n1/history/?range=1h&columns=utilisation_percent,nonsense").json()
    assert [one["minor"] for one in of_node["devices"]] == [0, 1, 2]
    assert of_node["columns"] == {"utilisation_percent": [[40.0], [None], [None]]}
    fleet = client.get("/fleet/history/?range=1h").json()
    assert (fleet["columns"]["held"], fleet["columns"]["used"]) == ([2.0], [0.4])
    of_model = client.get("/fleet/history/?range=1h&group=model:H100").json()
    assert (of_model["columns"]["gpus"], of_model["columns"]["used"]) == ([3.0], [None]), "nobody measured is not 0"
    for odd in ("?range=1y", "?range=%01", "?group=nobody"):
        assert client.get(f"/fleet/history/{odd}").status_code == 200


def test_a_week_of_a_new_fleet(as_user: AsUser, node: Node) -> None:
    """VIEW-1 what is not rolled up into hours yet is shown from its minutes; unknown power is unknown, not 0."""
    minute_of(node, 40)
    week = as_user().get("/fleet/history/?range=7d").json()
    assert (week["step"], week["columns"]["used"], week["columns"]["power"]) == (3600, [0.4], [None])
    assert week["columns"]["memory_used"] == [2.0]


def test_two_that_share_a_gpu_take_what_both_need(as_user: AsUser, node: Node) -> None:
    """VIEW-2 one has much core, another much memory: given is the larger of both sums, as on the map, and the rest is
    free.
    """
    wide = DeviceFactory(node=node, minor=7, memory_bytes=100)
    grants = [
        AllocationDevice(
            device=wide,
            core_percent=core,
            memory_bytes=memory,
            allocation=Allocation(state=State.BOUND, created_at=timezone.now()),
        )
        for core, memory in ((50, 10), (10, 50))
    ]
    row = overviews._row(wide, grants, SYSTEM, None)
    assert (row.used_percent, row.state) == (60.0, "shared")
    assert sum(part for part, _, _ in row.parts) == pytest.approx(60)
    grants[0].allocation.state = State.RESERVED
    assert overviews._row(wide, grants, SYSTEM, None).state == "held"


def test_history_to_keep(as_user: AsUser, node: Node, told: redis.Redis) -> None:
    """VIEW-1 CSV of a device and of the fleet."""
    minute_of(node, 40)
    client = as_user()
    answer = client.get(f"/devices/{gpus(node)[0].pk}/history.csv?range=1h")
    assert answer["Content-Disposition"] == 'attachment; filename="n1-gpu-0-1h.csv"'
    (line,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (line["utilisation_percent"], line["utilisation_percent_max"], line["power_watts"]) == ("40", "45", "")
    answer = client.get("/fleet/history.csv?range=1h&group=model:H100")
    assert answer["Content-Disposition"] == 'attachment; filename="fleet-model-H100-1h.csv"'
    (line,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (line["gpus"], line["used"]) == ("3", "")


def test_the_fleet_to_keep(as_user: AsUser, node: Node, django_assert_max_num_queries: Any) -> None:
    """VIEW-1 VIEW-6 every device, holders only of one's own namespaces; text that a spreadsheet would run is quoted."""
    Device.objects.filter(node=node, minor=2).update(healthy=False, health_reason="=HYPERLINK(1)", pcie="@SUM(1)")
    client = as_user(Role.VIEWER, "research")
    with django_assert_max_num_queries(12):
        answer = client.get("/fleet/devices.csv")
    lines = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [(line["node"], line["minor"], line["pool"]) for line in lines] == [
        ("n1", str(n), "training") for n in range(3)
    ]
    assert [line["holders"] for line in lines] == ["research/research-pod", "another team", ""]
    assert [line["state"] for line in lines] == ["in use", "in use", "unhealthy"]
    assert (lines[2]["health"], lines[2]["pcie"]) == ("'=HYPERLINK(1)", "'@SUM(1)")


def test_who_leaves_gpus_idle(as_user: AsUser, node: Node) -> None:
    """VIEW-1 VIEW-6 each idle GPU with its holder, where one may see that."""
    since = timezone.now() - timedelta(hours=3)
    Device.objects.filter(node=node, minor__in=(0, 1)).update(idle_since=since)
    text = as_user(Role.VIEWER, "research").get("/usage/").content.decode()
    assert "just now" in text, "nobody is said to have left it idle before they had it"
    assert "3 h ago" not in text
    Allocation.objects.update(bound_at=since - timedelta(hours=1))
    text = as_user(Role.VIEWER, "research").get("/usage/").content.decode()
    assert "research/research-pod" in text
    assert "another team" in text
    assert "secret" not in text
    assert "3 h ago" in text


def test_the_next_idle_gpus_leave_the_charts_as_they_are(
    as_user: AsUser, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VIEW-1 the list turns its page by itself: range and group of the charts are chosen in the browser."""
    monkeypatch.setattr(slices, "PAGE_SIZE", 1)
    Device.objects.filter(node=node, minor__in=(0, 1)).update(idle_since=timezone.now())
    client = as_user(Role.ADMIN)
    first, second = (client.get(path).content.decode() for path in ("/usage/?range=7d", "/usage/idle/?page=2"))
    for text, page in ((first, 2), (second, 1)):
        assert f'hx-get="/usage/idle/?page={page}" hx-target="#idle" hx-swap="outerHTML"' in text
    assert 'hx-get="/usage/idle/?page=2" hx-trigger="every 20s"' in second


def test_a_nodes_wiring_is_drawn(as_user: AsUser, node: Node) -> None:
    """VIEW-1 each GPU once, on the bar that stands for links between all."""
    text = as_user().get("/nodes/n1/").content.decode()
    assert "NVLink, 18 links between every two" in text
    for device in gpus(node):
        assert text.count(f'<a href="/devices/{device.pk}/"><g class="box') == 1
