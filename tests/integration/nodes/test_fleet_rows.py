"""The stream's rows follow the ledger's commits, on both databases."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.db.models import F

from access.actors import SYSTEM
from agent.protocol import COLUMNS as SAMPLED
from allocations.selectors import held_devices
from nodes import revisions
from nodes.live.fleet_columns import COLUMNS, Figures, Flag, columns_of, figures_of
from nodes.live.fleet_rows import FleetRows
from nodes.live.samples import SampleView
from nodes.models import Device, Node
from nodes.selectors import device_counts
from nodes.services import node_remove
from storage.clock import database_now
from tests.extender import bound, filtered, pod_manifest
from tests.factories import DeviceFactory, NodeFactory

UNKNOWN = 255


def column(rows, name, samples=None, *, now=1000.0):
    return columns_of(rows, samples or {}, now=now)[COLUMNS.index(name)].tolist()


def change(device, **values):
    with transaction.atomic():
        Device.objects.filter(pk=device.pk).update(revision=revisions.next_revision(), **values)


@pytest.fixture
def fleet(ledger_db):
    """Two nodes of two GPUs, and the rows that follow them."""
    NodeFactory(name="n10", gpus=2)
    NodeFactory(name="n2", gpus=2, labels={"topology.kubernetes.io/rack": "r1"})
    rows = FleetRows(held_devices)
    assert rows.refresh()
    return rows


def test_the_layout_is_by_rack_and_name(fleet):
    assert [node.name for node in fleet.layout.nodes] == ["n10", "n2"]
    assert fleet.layout.nodes[1].rack == "r1"
    assert not fleet.refresh()


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        pytest.param({}, "", id="none"),
        pytest.param({"karpenter.sh/nodepool": "burst"}, "burst", id="Karpenter"),
        pytest.param({"cloud.google.com/gke-nodepool": "a3"}, "a3", id="GKE"),
        pytest.param({"eks.amazonaws.com/nodegroup": "p5"}, "p5", id="EKS"),
        pytest.param({"agentpool": "nd", "kubernetes.azure.com/agentpool": "ndv5"}, "ndv5", id="AKS, the newer label"),
        pytest.param({"karpenter.sh/nodepool": "", "pool": "own"}, "own", id="an empty label says nothing"),
    ],
)
def test_the_pool_follows_the_nodes_labels(fleet, labels, want):
    """VIEW-1 a node's pool is by the labels that clouds and Karpenter set, and moves with them."""
    Node.objects.filter(name="n2").update(labels=labels, changed_at=datetime.now(UTC))
    assert fleet.refresh()
    assert {node.name: node.pool for node in fleet.layout.nodes} == {"n10": "", "n2": want}


def test_the_figures_count_the_gpus_of_the_fleet(fleet):
    """VIEW-1 the server says the numbers above the map; other devices than GPUs count in none of them."""
    DeviceFactory(node=Node.objects.get(name="n2"), type="rdma", minor=0, uuid="nic", memory_bytes=0)
    half, sick = Device.objects.filter(node__name="n10").order_by("minor")
    taken, _ = Device.objects.filter(node__name="n2", type="gpu").order_by("minor")
    change(half, core_used=50)
    change(sick, healthy=False)
    change(taken, stranger="someone")
    fleet.refresh()
    samples = {"n10": sample("n10", received_at=999.0, utilisation_percent=(30, 61))}
    columns = columns_of(fleet, samples, now=1000.0)
    assert figures_of(fleet, columns) == Figures(
        total=4, used=2, free=1, unhealthy=1, allocated_percent=12.5, utilisation_percent=45.5
    )


def test_a_gpu_that_a_reservation_pod_has_for_nobody_is_used_in_all_figures(fleet):
    """VIEW-1 SHARE-7 the numbers above the map are those of the overview."""
    change(Device.objects.get(node__name="n2", minor=0), gpu_group="g1")
    fleet.refresh()
    figures = figures_of(fleet, columns_of(fleet, {}, now=1000.0))
    (counts,) = device_counts()
    assert (figures.used, figures.free) == (counts["used"], counts["free"]) == (1, 3)


def test_an_empty_fleet_has_means_of_nothing(ledger_db):
    rows = FleetRows(held_devices)
    rows.refresh()
    assert figures_of(rows, columns_of(rows, {}, now=1000.0)) == Figures(0, 0, 0, 0, None, None)


@pytest.mark.parametrize(
    ("values", "name", "want"),
    [
        pytest.param({"core_used": 50}, "core", [0, 0, 50, 0], id="core"),
        pytest.param({"memory_used": 1}, "memory", [0, 0, 1, 0], id="memory rounds up: a taken byte is seen"),
        pytest.param({"healthy": False}, "flags", [19, 19, 18, 19], id="health"),
        pytest.param({"presence": "vanished"}, "flags", [19, 19, 17, 19], id="vanished while held"),
        pytest.param({"stranger": "someone"}, "flags", [19, 19, 23, 19], id="a stranger"),
    ],
)
def test_a_change_of_use_patches_the_row(fleet, values, name, want):
    """VIEW-1 what the ledger commits is in the next picture."""
    change(Device.objects.get(node__name="n2", minor=0), **values)
    assert not fleet.refresh()
    assert column(fleet, name) == want


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda: DeviceFactory(node=Node.objects.get(name="n2"), minor=7), id="a new device"),
        pytest.param(lambda: change(Device.objects.first(), presence="removed"), id="a device removed"),
        pytest.param(lambda: change(Device.objects.first(), model="H200"), id="another model"),
        pytest.param(lambda: NodeFactory(name="n3"), id="a node without devices"),
        pytest.param(lambda: Node.objects.filter(name="n2").delete(), id="a node gone with its devices"),
        pytest.param(
            lambda: Node.objects.filter(name="n2").update(labels={"rack": "r9"}, changed_at=datetime.now(UTC)),
            id="a node moved",
        ),
        pytest.param(
            lambda: Node.objects.filter(name="n2").update(
                labels={"rack": "r9"}, changed_at=F("changed_at") - timedelta(seconds=9)
            ),
            id="a node moved, committed late or by a clock that was set back",
        ),
    ],
)
def test_a_change_of_shape_makes_a_new_layout(fleet, act):
    act()
    assert fleet.refresh()
    assert fleet.layout.device_count == Device.objects.exclude(presence="removed").count()
    assert not fleet.refresh()


def test_a_node_that_is_gone_with_its_devices_is_left_out(fleet):
    """VIEW-1 SCALE-4 Karpenter's nodes come and go: one that went is no node of the fleet."""
    node_remove(node=Node.objects.get(name="n2"), actor=SYSTEM, now=database_now())
    assert fleet.refresh()
    assert [node.name for node in fleet.layout.nodes] == ["n10"]


def test_a_node_that_is_not_ready_marks_its_devices(fleet):
    Node.objects.filter(name="n10").update(state="not-ready")
    fleet.refresh()
    assert [bool(flags & Flag.NODE_READY) for flags in column(fleet, "flags")] == [False, False, True, True]


def test_a_hold_is_marked_until_the_pod_is_bound(fleet):
    pod = pod_manifest("train", resources={"nvidia.com/gpu": "1"})
    node = filtered(pod, ["n2"])
    fleet.refresh()
    assert [bool(flags & Flag.HELD) for flags in column(fleet, "flags")].count(True) == 1
    bound(pod, node)
    fleet.refresh()
    assert not any(flags & Flag.HELD for flags in column(fleet, "flags"))
    assert sum(column(fleet, "core")) == 100


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_writer_that_commits_late_is_not_missed(ledger_db, fleet):
    """Two writers commit in the reverse order of their revisions; the earlier one is read after all."""
    first, second = Device.objects.filter(node__name="n10").order_by("minor")
    with transaction.atomic():
        Device.objects.filter(pk=first.pk).update(revision=revisions.next_revision(), core_used=40)
        ledger_db.race([lambda: change(second, core_used=60)])
        ledger_db.race([fleet.refresh])
        assert column(fleet, "core")[:2] == [0, 60]
    fleet.refresh()
    assert column(fleet, "core")[:2] == [40, 60]


def sample(node, *, received_at, **columns):
    devices = tuple(f"GPU-{node}-{minor}" for minor in range(2))
    values = {name: columns.get(name, (None, None)) for name in SAMPLED}
    return SampleView(node, "boot", 1, received_at, received_at, devices, **values)


@pytest.mark.parametrize(
    ("name", "columns", "age", "want"),
    [
        pytest.param("utilisation", {"utilisation_percent": (70, None)}, 1, [70, UNKNOWN], id="unknown is not zero"),
        pytest.param("memory_in_use", {"memory_used_bytes": (40 << 30, 0)}, 1, [50, 0], id="memory in percent"),
        pytest.param("power", {"power_watts": (702, 5000)}, 1, [117, 254], id="power in steps of 6 W, bounded"),
        pytest.param(
            "nvlink",
            {"nvlink_tx_bytes": (450_000_000_000, 1), "nvlink_rx_bytes": (450_000_000_000, 0)},
            1,
            [123, 1],
            id="NVLink both ways by its root: the least traffic shows",
        ),
        pytest.param(
            "nvlink",
            {"nvlink_tx_bytes": (0, 7), "nvlink_rx_bytes": (0, None)},
            1,
            [0, UNKNOWN],
            id="no traffic, and half of it unknown",
        ),
        pytest.param("temperature", {"temperature_celsius": (61, 62)}, 11, [UNKNOWN, UNKNOWN], id="an old sample"),
    ],
)
def test_measurements(fleet, name, columns, age, want):
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    samples = {"n10": sample("n10", received_at=now - age, **columns)}
    assert column(fleet, name, samples, now=now) == [*want, UNKNOWN, UNKNOWN]


def test_what_was_written_past_the_ledger_is_found_by_the_full_reload(fleet):
    """VIEW-1 a row that says nothing of its change is right a reload later, without a new layout."""
    Device.objects.filter(node__name="n2", minor=0).update(core_used=50)
    assert not fleet.refresh()
    assert column(fleet, "core") == [0, 0, 0, 0]
    fleet._compare_at = 0
    assert not fleet.refresh()
    assert column(fleet, "core") == [0, 0, 50, 0]
