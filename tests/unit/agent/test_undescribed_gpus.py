"""GPUs of which the driver does not say what an inventory needs: no other GPU of the node is refused for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.outbox import Outbox
from agent.program import DESCRIBED_WITHIN_SECONDS, MACHINE_SECONDS, Program
from agent.sources.nvml import NvmlSource
from nodes.inventory import DeviceShape, parse_node
from tests.unit.agent.fake_nvml import Card, FakeNvml


class World:
    """A program on a driver, a clock, and what the server has by the inventories that the program sent."""

    def __init__(self, tmp_path: Path, *cards: Card) -> None:
        self.now = 0.0
        source = NvmlSource(sys=tmp_path, nv=FakeNvml(*cards), clock=lambda: self.now)
        self.program = Program("n1", source, Outbox(), clock=lambda: self.now, epoch=lambda: self.now)
        self.devices: dict[str, DeviceShape] = {}
        self.columns: list[object] = []

    def list_devices(self) -> None:
        """The next listing of the devices, and their reading."""
        self.now += MACHINE_SECONDS
        report = self.program.evaluate(self.program.scan())
        self.columns = list(report.columns.get("power_watts", []))
        if report.inventory is not None:
            shape = parse_node(report.inventory, name="n1", strict=False).of_agent()
            kept = [device for device in self.devices.values() if not shape.owns(device.type)]
            self.devices = {device.uuid: device for device in (*kept, *shape.devices)}

    def restart(self) -> None:
        """Another boot of the program, on the same driver."""
        source = self.program.source
        self.program = Program("n1", source, Outbox(), clock=lambda: self.now, epoch=lambda: self.now)

    def wait(self) -> None:
        """List the devices until GPUs that are not described are waited for no longer."""
        until = self.now + MACHINE_SECONDS + DESCRIBED_WITHIN_SECONDS
        while self.now < until:
            self.list_devices()


def cards() -> tuple[Card, Card]:
    one, two = Card("GPU-0", 0, links=[1]), Card("GPU-1", 1, links=[0])
    one.mig = ["1g.10gb"]
    return one, two


CALLS = [pytest.param({"memory"}, id="memory"), pytest.param({"name"}, id="model")]


@pytest.mark.parametrize("without", CALLS)
def test_the_inventory_has_the_others(tmp_path: Path, without: set[str]) -> None:
    """NODE-1 NODE-4 and samples list the same GPUs; the one that was left out comes once the driver says more."""
    one, two = cards()
    one.without = set(without)
    world = World(tmp_path, one, two)
    world.wait()
    assert set(world.devices) == {"GPU-1"}
    assert world.columns == [350.0]
    one.without = set()
    world.list_devices()
    assert set(world.devices) == {"GPU-0", "MIG-0-0", "GPU-1"}
    assert world.columns == [350.0, 350.0]


@pytest.mark.parametrize("without", CALLS)
def test_a_restart_leaves_no_gpu_out_at_once(tmp_path: Path, without: set[str]) -> None:
    """NODE-1 what the server knows stays for a minute, in which the driver may describe its GPUs again."""
    one, two = cards()
    world = World(tmp_path, one, two)
    world.list_devices()
    known = dict(world.devices)
    one.without = set(without)
    world.restart()
    begun = world.now
    while world.now < begun + DESCRIBED_WITHIN_SECONDS:
        world.list_devices()
        assert (world.devices, world.columns) == (known, [])
    one.without = set()
    world.list_devices()
    assert (world.devices, world.columns) == (known, [350.0, 350.0])
    one.without = set(without)
    world.restart()
    world.wait()
    assert (set(world.devices), world.columns) == ({"GPU-1"}, [350.0])


@pytest.mark.parametrize("without", CALLS)
def test_a_gpu_that_comes_later_hides_no_other(tmp_path: Path, without: set[str]) -> None:
    """NODE-1 once GPUs were reported, one that is new and not described is left out at once."""
    one, two = cards()
    one.lost = True
    world = World(tmp_path, one, two)
    world.list_devices()
    assert (set(world.devices), world.columns) == ({"GPU-1"}, [350.0])
    one.lost, one.without = False, set(without)
    world.list_devices()
    assert (set(world.devices), world.columns) == ({"GPU-1"}, [350.0])


@pytest.mark.parametrize("without", CALLS)
def test_a_gpu_that_was_known_stays_as_it_was(tmp_path: Path, without: set[str]) -> None:
    """NODE-1 NODE-4 with its instances; the node's other changes are still reported."""
    one, two = cards()
    world = World(tmp_path, one, two)
    world.list_devices()
    known = dict(world.devices)
    one.without = set(without)
    two.name = "NVIDIA H200"
    world.list_devices()
    assert world.devices.pop("GPU-1").model == "NVIDIA H200"
    del known["GPU-1"]
    assert world.devices == known
    assert world.columns == [350.0, 350.0]


def test_a_gpu_whose_minor_is_unknown_takes_that_of_no_other(tmp_path: Path) -> None:
    """NODE-1 the server refuses two GPUs with one minor; its index may be the minor of another."""
    one, two, three = Card("GPU-1", 1, links=[0]), Card("GPU-0", 0, links=[1]), Card("GPU-2", 2)
    two.without = {"minor"}
    two.mig = ["1g.10gb"]
    world = World(tmp_path, one, two, three)
    world.list_devices()
    assert {uuid: device.minor for uuid, device in world.devices.items() if not device.parent} == {
        "GPU-1": 1,
        "GPU-0": 0,
        "GPU-2": 2,
    }
    assert world.columns == [350.0] * 3


def test_a_gpu_keeps_the_minor_that_the_driver_said_once(tmp_path: Path) -> None:
    """NODE-1 also while another one, which would be numbered in its place, is lost."""
    cards = [Card("GPU-1", 1), Card("GPU-0", 0), Card("GPU-2", 2)]
    world = World(tmp_path, *cards)
    world.list_devices()
    known = dict(world.devices)
    cards[0].without = {"minor"}
    cards[2].lost = True
    world.list_devices()
    assert world.devices == known
    cards[1].without = {"minor"}
    world.list_devices()
    assert world.devices == known


def test_a_chosen_minor_stays_until_the_driver_says_it_of_another(tmp_path: Path) -> None:
    """NODE-1 devices are not renumbered with each listing, and never have one number."""
    one, two = Card("GPU-1", 1), Card("GPU-0", 0)
    one.without = two.without = {"minor"}
    world = World(tmp_path, one, two)
    world.list_devices()
    assert {uuid: device.minor for uuid, device in world.devices.items()} == {"GPU-1": 0, "GPU-0": 1}
    two.without = set()
    world.list_devices()
    assert {uuid: device.minor for uuid, device in world.devices.items()} == {"GPU-1": 1, "GPU-0": 0}
