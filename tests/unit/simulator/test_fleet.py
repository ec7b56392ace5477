"""The make-believe machines: as many as asked, the same every time, wired like machines that exist."""

from __future__ import annotations

import pytest

from agent.outbox import Outbox
from nodes.inventory import parse_node
from simulator.fleet import GPUS_A_NODE, KINDS, MachineKind, SimNode, make_fleet


@pytest.mark.parametrize("count", [1, 2, 7, 63, 64, 65, 500, 5000])
def test_fleet_has_the_size_asked_for(count: int) -> None:
    fleet = make_fleet(count)
    assert len(fleet) == count
    assert len({node.name for node in fleet}) == count
    assert len({uuid for node in fleet for uuid in node.uuids}) == count * GPUS_A_NODE


@pytest.mark.parametrize("count", [0, -1, 5001])
def test_impossible_sizes_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="a fleet has 1 to 5000 nodes"):
        make_fleet(count)


def test_second_run_finds_the_same_fleet() -> None:
    assert make_fleet(64) == make_fleet(64)
    assert {node.kind.letter for node in make_fleet(64)} == {kind.letter for kind in KINDS}


@pytest.mark.parametrize(
    "node", [pytest.param(node, id=node.name) for node in make_fleet(64) if node.name.endswith("001")]
)
def test_inventory_is_what_the_control_plane_accepts(node: SimNode) -> None:
    shape = parse_node(node.inventory(), name=node.name)
    assert sum(device.type == "gpu" for device in shape.devices) == GPUS_A_NODE
    assert sum(device.type == "rdma" for device in shape.devices) == node.kind.nics
    switches = {device.pcie for device in shape.devices if device.type == "gpu"}
    assert {device.pcie for device in shape.devices} == switches
    assert all(device.healthy for device in shape.devices)


def test_sick_device_is_in_the_inventory_as_such() -> None:
    node = make_fleet(1)[0]
    sick = node.uuids[3]
    outbox = Outbox()
    outbox.put_inventory(node.inventory())
    outbox.put_health({sick: "Xid 79"})
    change = outbox.next_change()
    assert change is not None
    devices = parse_node(change.inventory).devices
    assert [device.uuid for device in devices if not device.healthy] == [sick]


def _links_of_a_gpu(kind: MachineKind) -> set[int]:
    return {sum(count for a, b, count in kind.links if minor in (a, b)) for minor in range(GPUS_A_NODE)}


@pytest.mark.parametrize(
    ("letter", "want_pairs", "want_sums"),
    [
        pytest.param("a", 28, {7 * 18}, id="every pair behind the switch over all 18"),
        pytest.param("b", 28, {7 * 12}, id="every pair behind the switch over all 12"),
        pytest.param("c", 16, {6}, id="hybrid cube mesh: six links a card"),
        pytest.param("d", 12, {18}, id="two bridged islands of four"),
        pytest.param("e", 0, {0}, id="no links"),
    ],
)
def test_wiring(letter: str, want_pairs: int, want_sums: set[int]) -> None:
    kind = next(kind for kind in KINDS if kind.letter == letter)
    assert len(kind.links) == len({(a, b) for a, b, _ in kind.links}) == want_pairs
    assert all(a < b for a, b, _ in kind.links)
    assert _links_of_a_gpu(kind) == want_sums
