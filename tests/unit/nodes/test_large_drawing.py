"""Nodes that are too large to be drawn are told as tables."""

import pytest

from nodes.drawing import DRAWN_MOST, draw, switch_rows
from nodes.models import Device
from nodes.overviews import link_matrix


def gpus(number):
    return [
        Device(
            pk=minor,
            type="gpu",
            minor=minor,
            uuid=f"GPU-{minor}",
            numa=minor // 8,
            pcie=f"s{minor // 4}",
            island=minor // 8,
            model="H100",
        )
        for minor in range(number)
    ]


def islands(number):
    return [[base + a, base + b, 18] for base in range(0, number, 8) for a in range(8) for b in range(a)]


@pytest.mark.parametrize(
    ("number", "drawn"), [pytest.param(DRAWN_MOST, True, id="32"), pytest.param(DRAWN_MOST + 8, False, id="40")]
)
def test_up_to_32_gpus_are_drawn(number, drawn):
    """VIEW-1 matrix and wiring up to 32 GPUs, tables beyond."""
    devices, links = gpus(number), islands(number)
    assert (draw(devices, links) is not None) is drawn
    rows = link_matrix(devices, links)
    assert [row.minor for row in rows] == list(range(number))
    assert {len(row.cells) for row in rows} == {number if drawn else 0}
    assert {(row.linked, row.links, row.most_bytes) for row in rows} == {(7, 126, 18 * 25_000_000_000)}


def test_a_large_node_by_switches():
    """VIEW-1 what the drawing would show, in as many rows as there are switches."""
    nic = Device(pk=900, type="rdma", minor=3, uuid="nic", numa=1, pcie="s2")
    lone = Device(pk=901, type="gpu", minor=70, uuid="GPU-70", numa=-1, pcie="")
    rows = switch_rows([*reversed(gpus(64)), nic, lone])
    assert len(rows) == 17
    assert [(row.numa, row.pcie, row.gpus, row.others) for row in rows[:4]] == [
        (-1, "", "70", ""),
        (0, "s0", "0–3", ""),
        (0, "s1", "4–7", ""),
        (1, "s2", "8–11", "rdma 3"),
    ]


def test_links_to_gpus_that_are_not_there_count_nowhere():
    rows = link_matrix(gpus(2), [[0, 1, 4], [1, 0, 2], [0, 9, 18]])
    assert [(row.linked, row.links) for row in rows] == [(1, 2), (1, 2)]
