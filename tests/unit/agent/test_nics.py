"""RDMA NICs as sysfs shows them, beside the GPUs of another source."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.program import inventory_of
from agent.sources import DeviceFacts, Machine, Reading
from agent.sources.nics import GONE, NO_PORT, NO_STATE, WithNics
from agent.sources.wiring import switch_of

SWITCH_A, SWITCH_B = "0000:10:00.0", "0000:80:00.0"
GPU = DeviceFacts(minor=0, uuid="GPU-0", model="H100", memory=80 * 2**30, numa=0, pcie=SWITCH_A, busid="0000:12:00.0")


class Gpus:
    """A source with one GPU."""

    def __init__(self) -> None:
        self.closed = False

    def machine(self) -> Machine:
        return Machine((GPU,))

    def read(self, _: Machine, /) -> Reading:
        return Reading({"power_watts": [100]})

    def close(self) -> None:
        self.closed = True


class Sysfs:
    """The files that the kernel shows of a machine's NICs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = root / "class" / "infiniband"
        (root / "bus" / "pci" / "devices").mkdir(parents=True)
        self.names.mkdir(parents=True)

    def pci(self, address: str, *, switch: str = SWITCH_A, numa: int = 0) -> Path:
        """A PCI function under a switch."""
        folder = self.root / "devices" / "pci0000:00" / "0000:00:01.0" / switch / f"{switch[:-4]}01.0" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{numa}\n")
        (self.root / "bus" / "pci" / "devices" / address).symlink_to(folder)
        return folder

    def nic(
        self,
        name: str,
        address: str,
        *,
        guid: str | None = "b8ce:f603:00f4:1a2c",
        ports: dict[int, str] | None = None,
        switch: str = SWITCH_A,
        numa: int = 0,
    ) -> Path:
        """A NIC of the kernel; the folder of its class device."""
        folder = self.pci(address, switch=switch, numa=numa) / "infiniband" / name
        self._fill(folder, guid=guid, ports={1: "4: ACTIVE"} if ports is None else ports)
        (folder / "device").symlink_to("../..")
        (self.names / name).symlink_to(folder)
        return folder

    def _fill(self, folder: Path, *, guid: str | None, ports: dict[int, str]) -> None:
        folder.mkdir(parents=True)
        if guid is not None:
            (folder / "node_guid").write_text(f"{guid}\n")
        (folder / "board_id").write_text("MT_0000000838\n")
        (folder / "hca_type").write_text("MT4129\n")
        for number, state in ports.items():
            port = folder / "ports" / str(number)
            port.mkdir(parents=True)
            (port / "state").write_text(f"{state}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def source(sysfs: Sysfs, node: str = "n1") -> WithNics:
    return WithNics(Gpus(), sys=sysfs.root, node=node)


def test_nics_are_devices(sysfs: Sysfs) -> None:
    """by PCI address, with the switch and NUMA node that a GPU beside them has."""
    sysfs.nic("mlx5_1", "0000:9a:00.0", guid="b8ce:f603:00f4:0002", switch=SWITCH_B, numa=1)
    sysfs.nic("mlx5_0", "0000:13:00.0", guid="b8ce:f603:00f4:0001")
    sysfs.pci("0000:12:00.0")
    made = source(sysfs)
    machine = made.machine()
    assert machine.types == ("gpu", "rdma")
    assert machine.devices == (
        GPU,
        DeviceFacts(0, "RDMA-b8cef60300f40001", "MT_0000000838", 0, 0, SWITCH_A, "rdma", "0000:13:00.0"),
        DeviceFacts(1, "RDMA-b8cef60300f40002", "MT_0000000838", 0, 1, SWITCH_B, "rdma", "0000:9a:00.0"),
    )
    assert switch_of(sysfs.root, "0000:12:00.0") == machine.devices[1].pcie, "one notion of a switch"
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-0"]
    assert made.read(machine) == Reading({"power_watts": [100]})
    made.close()


def test_the_inventory_says_which_types_it_is_about(sysfs: Sysfs) -> None:
    """A node whose kernel has RDMA and no NIC has none; of one without RDMA nothing is said."""
    assert inventory_of("n1", source(sysfs).machine())["types"] == ["gpu", "rdma"]
    sysfs.nic("mlx5_0", "0000:13:00.0")
    (nic,) = [one for one in inventory_of("n1", source(sysfs).machine())["devices"] if one["type"] == "rdma"]
    assert nic == {
        "minor": 0,
        "type": "rdma",
        "uuid": "RDMA-b8cef60300f41a2c",
        "model": "MT_0000000838",
        "memory": 0,
        "numa": 0,
        "pcie": SWITCH_A,
        "busid": "0000:13:00.0",
    }
    shutil.rmtree(sysfs.names)
    body = inventory_of("n1", source(sysfs).machine())
    assert (body["types"], len(body["devices"])) == (["gpu"], 1)


@pytest.mark.parametrize(
    ("ports", "want"),
    [
        pytest.param({1: "4: ACTIVE"}, "", id="active"),
        pytest.param({1: "1: DOWN"}, NO_PORT, id="down"),
        pytest.param({1: "2: INIT"}, NO_PORT, id="no subnet manager"),
        pytest.param({1: "1: DOWN", 2: "4: ACTIVE"}, "", id="one of two"),
        pytest.param({1: "1: DOWN", 2: "3: ARMED"}, NO_PORT, id="none of two"),
        pytest.param({}, NO_STATE, id="no ports"),
        pytest.param({1: "garbage"}, NO_STATE, id="unreadable"),
    ],
)
def test_health(sysfs: Sysfs, ports: dict[int, str], want: str) -> None:
    """a NIC without an active port carries no traffic: it is not well, by its own state and at once."""
    sysfs.nic("mlx5_0", "0000:13:00.0", ports=ports)
    made = source(sysfs)
    assert made.read(made.machine()).health == ({"RDMA-b8cef60300f41a2c": want} if want else {})


def test_a_port_that_goes_down_and_comes_up(sysfs: Sysfs) -> None:
    folder = sysfs.nic("mlx5_0", "0000:13:00.0")
    made = source(sysfs)
    machine = made.machine()
    state = folder / "ports" / "1" / "state"
    for text, want in (("1: DOWN\n", {"RDMA-b8cef60300f41a2c": NO_PORT}), ("4: ACTIVE\n", {})):
        state.write_text(text)
        assert made.read(machine).health == want


def test_parts_of_nics_and_software_devices_are_left_out(sysfs: Sysfs) -> None:
    """Virtual functions, sub-functions and devices in software are parts of NICs, or none."""
    sysfs.nic("mlx5_0", "0000:13:00.0", guid="b8ce:f603:00f4:0001")
    sysfs.nic("mlx5_1", "0000:13:00.2", guid="b8ce:f603:00f4:0003")
    (sysfs.root / "bus/pci/devices/0000:13:00.2" / "physfn").symlink_to(sysfs.root / "bus/pci/devices/0000:13:00.0")
    sub = sysfs.root / "devices" / "pci0000:00" / "mlx5_core.sf.4"
    (sub / "infiniband" / "mlx5_2").mkdir(parents=True)
    (sub / "infiniband" / "mlx5_2" / "device").symlink_to("../..")
    (sysfs.names / "mlx5_2").symlink_to(sub / "infiniband" / "mlx5_2")
    soft = sysfs.root / "devices" / "virtual" / "infiniband" / "rxe0"
    soft.mkdir(parents=True)
    (sysfs.names / "rxe0").symlink_to(soft)
    (sysfs.names / "abi_version").write_text("1\n")
    assert [one.uuid for one in source(sysfs).machine().devices[1:]] == ["RDMA-b8cef60300f40001"]


def test_a_bond_is_one_nic(sysfs: Sysfs) -> None:
    """The kernel shows two bonded ports as one device, on the function of the first; the second has none."""
    sysfs.nic("mlx5_bond_0", "0000:13:00.0", ports={1: "4: ACTIVE"})
    sysfs.pci("0000:13:00.1")
    (bond,) = source(sysfs).machine().devices[1:]
    assert (bond.busid, bond.minor) == ("0000:13:00.0", 0)


@pytest.mark.parametrize("guid", [None, "0000:0000:0000:0000", ""])
def test_a_nic_without_a_guid(sysfs: Sysfs, guid: str | None) -> None:
    """Its UUID is the same at every start, and another on another node."""
    sysfs.nic("efa_0", "0000:13:00.0", guid=guid)
    first, again, other = (source(sysfs, node).machine().devices[1].uuid for node in ("n1", "n1", "n2"))
    assert first == again != other
    assert first.startswith("RDMA-")


def test_two_nics_with_one_guid(sysfs: Sysfs) -> None:
    """No two devices have the same UUID, whatever the cards say."""
    sysfs.nic("mlx5_0", "0000:13:00.0")
    sysfs.nic("mlx5_1", "0000:14:00.0")
    assert len({one.uuid for one in source(sysfs).machine().devices}) == 3


def test_a_nic_that_goes_away_moves_no_other(sysfs: Sysfs) -> None:
    """minors stay, it is told to be gone, and it is the same when it is there again."""
    for number, address in enumerate(("0000:13:00.0", "0000:14:00.0", "10000:01:00.0")):
        sysfs.nic(f"mlx5_{number}", address, guid=f"b8ce:f603:00f4:000{number + 1}")
    made = source(sysfs)
    machine = made.machine()
    assert [(one.busid, one.minor) for one in machine.devices[1:]] == [
        ("0000:13:00.0", 0),
        ("0000:14:00.0", 1),
        ("10000:01:00.0", 2),
    ]
    target = (sysfs.names / "mlx5_0").readlink()
    (sysfs.names / "mlx5_0").unlink()
    assert made.read(machine).health == {"RDMA-b8cef60300f40001": GONE}
    assert [(one.busid, one.minor) for one in made.machine().devices[1:]] == [("0000:14:00.0", 1), ("10000:01:00.0", 2)]
    assert made.read(machine).health == {"RDMA-b8cef60300f40001": GONE}
    (sysfs.names / "mlx5_0").symlink_to(target)
    assert made.machine() == machine
    assert made.read(machine).health == {}
