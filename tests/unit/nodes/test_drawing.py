"""The drawing of a node's wiring: everything stands once, and links are shown as what they are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent.sources.simulated import MACHINES, SimulatedSource
from nodes.drawing import BOX, TOP, draw
from nodes.models import Device


def machine(name: str) -> tuple[list[Device], list[list[int]]]:
    found = SimulatedSource(name, node="n1").machine()
    devices = [
        Device(
            pk=gpu.minor, type="gpu", minor=gpu.minor, uuid=gpu.uuid, numa=gpu.numa, pcie=gpu.pcie, island=0, model="H"
        )
        for gpu in found.gpus
    ]
    return devices, [list(link) for link in found.links]


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_machine(name: str) -> None:
    """VIEW-1 each GPU once, beside and not above another; every pair that is linked is shown, once."""
    devices, links = machine(name)
    drawing = draw(devices, links)
    assert drawing is not None
    assert sorted(box.device.minor for box in drawing.boxes) == [device.minor for device in devices]
    columns = sorted(box.x for box in drawing.boxes)
    assert all(right - left >= BOX for left, right in pairwise(columns))
    assert columns[-1] + BOX <= drawing.width
    if drawing.bars:
        (bar,) = drawing.bars
        assert len(bar.drops) == len(devices)
        assert not drawing.arcs
    else:
        assert len(drawing.arcs) == len(links)


def test_mixed_links_are_arcs_by_their_number() -> None:
    """VIEW-1 a hybrid cube mesh is no bar: double links are drawn thicker, and say so."""
    drawing = draw(*machine("dgx1-8"))
    assert drawing is not None
    assert {(arc.links, arc.weight) for arc in drawing.arcs} == {(1, 2), (2, 3)}
    assert "GPU 0 – GPU 3: 2 NVLinks" in {arc.title for arc in drawing.arcs}
    assert "GPU 0 – GPU 1: 1 NVLink" in {arc.title for arc in drawing.arcs}


def test_switches_and_numa_nodes_hold_their_devices() -> None:
    """VIEW-1 frames are around what they share, NICs below the GPUs of their switch."""
    devices, links = machine("h100-8")
    nic = Device(pk=99, type="rdma", minor=0, uuid="nic", numa=0, pcie=devices[0].pcie)
    drawing = draw([*devices, nic], links)
    assert drawing is not None
    assert len(drawing.switches) == 4
    assert [frame.label for frame in drawing.numa] == ["NUMA 0", "NUMA 1"]
    first = drawing.switches[0]
    (box,) = [box for box in drawing.boxes if box.device is nic]
    assert box.y > TOP + BOX
    for inside in [box, *[one for one in drawing.boxes if one.device.pcie == devices[0].pcie]]:
        assert first.x <= inside.x
        assert inside.x + BOX <= first.x + first.width
        assert inside.y + BOX <= first.y + first.height


def test_no_drawing_without_gpus() -> None:
    assert draw([], []) is None
    assert draw([Device(type="rdma", minor=0)], []) is None
