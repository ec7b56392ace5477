"""Sources without a driver: the simulated machines, recordings, rates, wiring."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import BOUNDS, COLUMNS, DeviceDetails, LinkDetails
from agent.sources import BadSource, DeviceFacts, Machine, Reading, SourceAway, error_columns, open_source
from agent.sources.counters import Rates
from agent.sources.mig import minor_of
from agent.sources.nics import NO_PORT
from agent.sources.recorded import BadRecording, RecordedSource, Recorder
from agent.sources.simulated import MACHINES, SimulatedSource
from agent.sources.wiring import SWITCH, LinkEnd, Seen, links_of, numa_of, short, switch_of
from tests.unit.agent.faulty import FaultySource


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_simulated_machines_are_whole(name: str) -> None:
    """NODE-1 wiring of real machines; every figure within its bounds, at every moment."""
    now = iter(itertools.count(1_700_000_000.0, 17.3))
    source = SimulatedSource(name, node="n1", clock=lambda: next(now))
    machine = source.machine()
    gpus = int(name.rpartition("-")[2])
    assert [gpu.minor for gpu in machine.gpus] == list(range(gpus))
    assert len({gpu.uuid for gpu in machine.gpus}) == gpus
    assert all(low < high < gpus and links > 0 for low, high, links in machine.links)
    assert machine == SimulatedSource(name, node="n1").machine()
    assert machine != SimulatedSource(name, node="n2").machine()
    for _ in range(50):
        reading = source.read(machine)
        assert reading.health == {}
        assert set(reading.columns) == set(COLUMNS) - set(ERRORS)
        assert set(error_columns(reading.details)) >= {"ecc_corrected", "ecc_uncorrected"}
        for column, values in reading.columns.items():
            low, high = BOUNDS[column]
            assert len(values) == gpus
            assert all(value is not None and low <= value <= high for value in values)
        if not machine.links:
            assert set(reading.columns["nvlink_tx_bytes"]) == {0}


def test_a_simulated_machine_with_nics() -> None:
    """as many as GPUs, each under the switch of some; one without a port is not well."""
    source = FaultySource("rdma-8", node="n1")
    machine = source.machine()
    nics = [one for one in machine.devices if one.type == "rdma"]
    assert machine.types == ("gpu", "rdma")
    assert [nic.minor for nic in nics] == list(range(8))
    assert {nic.pcie for nic in nics} == {gpu.pcie for gpu in machine.gpus}
    assert len({one.busid for one in machine.devices}) == 16
    source.unplug(3)
    assert source.read(machine).health == {nics[3].uuid: NO_PORT}
    source.plug(3)
    assert source.read(machine).health == {}


def test_a_simulated_machine_with_mig() -> None:
    """NODE-1 one GPU is cut: its instances are devices beside it."""
    source = SimulatedSource("mig-4", node="n1")
    machine = source.machine()
    parts = [one for one in machine.devices if one.parent]
    assert [gpu.mig for gpu in machine.gpus] == [True, False, False, False]
    assert {(one.parent, one.profile, one.memory) for one in parts} == {(machine.gpus[0].uuid, "1g.5gb", 5 * 2**30)}
    assert [one.minor for one in parts] == [1000 + 8 * (7 + place) for place in range(7)]
    assert [mig.uuid for mig in source.read(machine).details[0].migs] == [one.uuid for one in parts]


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 14), st.integers(0, 7)), unique=True))
def test_minors_of_instances_are_different(instances: list[tuple[int, int, int]]) -> None:
    """NODE-1 for every GPU of a node, GPU instance and compute instance that there may be."""
    minors = [minor_of(*one) for one in instances]
    assert len(set(minors)) == len(minors)
    assert all(minor >= 1000 for minor in minors)


def test_a_cube_mesh_is_one() -> None:
    """NODE-4 eight V100 with six links each."""
    links = MACHINES["dgx1-8"].links
    assert [sum(count for low, high, count in links if gpu in (low, high)) for gpu in range(8)] == [6] * 8


def test_a_gpu_that_falls_off_hides_no_other() -> None:
    """NODE-1 its figures are unknown, those of the others go on."""
    source = FaultySource("pcie-4", node="n1")
    machine = source.machine()
    source.fall_off(2)
    source.fall_sick(0, "Xid 63")
    reading = source.read(machine)
    assert reading.health == {machine.gpus[0].uuid: "Xid 63", machine.gpus[2].uuid: "fallen off the bus"}
    assert [value is None for value in reading.columns["power_watts"]] == [False, False, True, False]
    source.recover(2)
    source.recover(0)
    assert source.read(machine).health == {}


def test_a_recording_is_played_as_it_was(tmp_path: Path) -> None:
    """NODE-1 what one session saw is test data for all others."""
    path = tmp_path / "machine.jsonl"
    inner = FaultySource("l40s-4", node="n1")
    recorder = Recorder(inner, path)
    machine = recorder.machine()
    readings = [recorder.read(machine) for _ in range(3)]
    inner.fall_sick(1, "Xid 79")
    readings.append(recorder.read(recorder.machine()))
    recorder.close()
    played = RecordedSource(path)
    for _ in range(2):
        assert [played.read(played.machine()) for _ in range(4)] == readings
    assert played.machine() == machine
    recorder = Recorder(_Away(), path)
    with pytest.raises(SourceAway):
        recorder.machine()
    recorder.close()
    again = RecordedSource(path)
    for _ in range(4):
        again.read(again.machine())
    with pytest.raises(SourceAway, match="no driver"):
        again.read(again.machine())


@pytest.mark.parametrize("name", ["rdma-8", "mig-4"])
def test_a_recording_has_nics_and_instances(tmp_path: Path, name: str) -> None:
    """NODE-1 all that the machine has, as it was told."""
    recorder = Recorder(SimulatedSource(name, node="n1"), tmp_path / "machine.jsonl")
    machine = recorder.machine()
    recorder.read(machine)
    recorder.close()
    assert RecordedSource(tmp_path / "machine.jsonl").machine() == machine


class _Away:
    def machine(self) -> Machine:
        raise SourceAway("no driver")

    def read(self, _: Machine, /) -> Reading:
        raise SourceAway("no driver")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "does not begin with a machine"),
        ([{"reading": {}}], "does not begin with a machine"),
        ([{"machine": {}}], "holds no reading"),
        ([{"machine": {}}, {"reading": {}, "away": "x"}], "line 2: one of machine, reading, away"),
        ([{"machine": {}}, {"other": 1}], "line 2"),
        ([{"machine": {"devices": [{"minor": "x"}]}}], "line 1"),
    ],
    ids=[
        "empty",
        "a reading before the machine",
        "no reading",
        "two kinds in one line",
        "an unknown kind",
        "a minor that is no number",
    ],
)
def test_a_recording_that_cannot_be_read_is_refused(tmp_path: Path, lines: list[Any], problem: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    with pytest.raises(BadRecording, match=problem):
        RecordedSource(path)
    with pytest.raises(BadRecording, match="cannot be read"):
        RecordedSource(tmp_path / "missing")


@pytest.mark.parametrize("name", ["", "nvml:x", "simulated", "simulated:tpu-4", "recorded:", "cuda"])
def test_sources_that_do_not_exist(name: str) -> None:
    with pytest.raises(BadSource):
        open_source(name, node="n1")


def test_rates() -> None:
    """A counter that began anew, or was not there, gives no rate; one that stands still gives 0."""
    now = [0.0]
    rates = Rates(lambda: now[0])
    assert rates.of("g", "tx", 1000) is None
    now[0] = 2.0
    assert rates.of("g", "tx", 5000) == 2000
    assert rates.of("h", "tx", 5000) is None
    now[0] = 3.0
    assert rates.of("g", "tx", 5000) == 0
    now[0] = 4.0
    assert rates.of("g", "tx", 10) is None
    assert rates.of("g", "tx", None) is None
    now[0] = 5.0
    assert rates.of("g", "tx", 20) is None
    rates.forget()
    now[0] = 6.0
    assert rates.of("g", "tx", 30) is None
    assert rates.of("h", "tx", 0) is None
    rates.forget("h")
    now[0] = 7.0
    assert rates.of("g", "tx", 40) == 10
    assert rates.of("h", "tx", 40) is None


@pytest.mark.parametrize(
    ("before", "after", "about", "want"),
    [
        pytest.param(100, 300, None, 100, id="within one turn"),
        pytest.param(2**32 - 100, 100, None, 100, id="past the end"),
        pytest.param(2**32 - 100, 100, 120.0, 100, id="past the end, as fast as it was for a moment"),
        pytest.param(0, 1000, 10 * 2**31, 10 * 2**31 + 500, id="ten times past the end"),
        pytest.param(0, 1000, 0.0, 500, id="nothing in a moment"),
    ],
)
def test_rates_of_counters_of_32_bits(before: int, after: int, about: float | None, want: float) -> None:
    """NODE-1 over two seconds; how often it began anew is told by how fast it goes."""
    now = [0.0]
    rates = Rates(lambda: now[0])
    assert rates.of("g", "tx", before, is_narrow=True) is None
    now[0] = 2.0
    assert rates.of("g", "tx", after, is_narrow=True, about=about) == want


def seen(minor: int, peers: list[int] = [], switched: int = 0) -> Seen:  # noqa: B006 - never changed
    facts = DeviceFacts(minor=minor, uuid=f"G{minor}")
    remotes = [f"0000:{peer:02X}:00.0" for peer in peers] + [SWITCH] * switched
    ends = [LinkEnd(number, True, remote) for number, remote in enumerate(remotes)]
    return Seen(facts, None, f"00000000:{minor:02x}:00.0", ends)


def test_links() -> None:
    """NODE-4 as many as both ends count; over switches every pair; nothing for devices that are not GPUs here."""
    assert links_of([seen(0, [1, 1, 2]), seen(1, [0, 0]), seen(2, [0, 9])]) == ((0, 1, 2), (0, 2, 1))
    assert links_of([seen(0, switched=18), seen(1, switched=18), seen(2, switched=17), seen(3)]) == (
        (0, 1, 18),
        (0, 2, 17),
        (1, 2, 17),
    )
    assert links_of([seen(1, [0]), seen(0)]) == ()


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=4, max_size=4))
def test_links_never_exceed_what_either_end_counts(peers: list[list[int]]) -> None:
    found = links_of([seen(minor, listed) for minor, listed in enumerate(peers)])
    assert [link[:2] for link in found] == sorted({link[:2] for link in found})
    for low, high, links in found:
        assert low < high
        assert links == min(peers[low].count(high), peers[high].count(low)) > 0


def test_switches_and_numa_nodes(tmp_path: Path) -> None:
    """DEV-10 the upstream port names the switch; a card right at the root port is under none."""
    switched = tmp_path / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3d:00.0"
    alone = tmp_path / "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0"
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    for folder, numa in ((switched, "1"), (alone, "x")):
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(numa)
        (links / folder.name).symlink_to(folder)
    assert short("00000000:3D:00.0") == "0000:3d:00.0"
    assert short("00010000:3D:00.0") == "10000:3d:00.0", "domains have more digits where there are many"
    assert (switch_of(tmp_path, "00000000:3D:00.0"), numa_of(tmp_path, "00000000:3D:00.0")) == ("0000:3b:00.0", 1)
    assert (switch_of(tmp_path, "0000:5e:00.0"), numa_of(tmp_path, "0000:5e:00.0")) == ("", -1)
    assert (switch_of(tmp_path, "0000:ff:00.0"), numa_of(tmp_path, "0000:ff:00.0")) == ("", -1)


ERRORS = ("nvlinks_down", "nvlink_errors", "ecc_corrected", "ecc_uncorrected")


def test_errors_as_columns() -> None:
    """NODE-1 links that are down and errors are numbers a GPU; a GPU that does not say is unknown, a column that none
    says is left out.
    """
    assert error_columns([DeviceDetails(), DeviceDetails()]) == {}
    known = DeviceDetails([LinkDetails(0, True, "", 1, 2, None), LinkDetails(1, False, "", 4, None, 8)], 5)
    assert error_columns([known, DeviceDetails([LinkDetails(0, True)])]) == {
        "nvlinks_down": [1, 0],
        "nvlink_errors": [15, None],
        "ecc_corrected": [5, None],
    }


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_simulated_details(name: str) -> None:
    """NODE-1 NODE-4 each machine's GPUs have links by its matrix; a link that is cut is down, and one that fell off
    says nothing.
    """
    source = FaultySource(name, node="n1", clock=lambda: 75.0)
    machine = source.machine()
    details = source.read(machine).details
    linked = {minor for low, high, _ in machine.links for minor in (low, high)}
    assert [bool(one.links) for one in details] == [gpu.minor in linked for gpu in machine.gpus]
    uuids = {gpu.uuid for gpu in machine.gpus}
    assert {link.remote for one in details for link in one.links} <= uuids | {SWITCH}
    assert bool(details[0].migs) == (name == "mig-4")
    source.cut_link(0, 0)
    source.fall_off(1)
    cut, fallen = source.read(machine).details[:2]
    if cut.links:
        assert (cut.links[0].is_up, cut.links[0].replay_errors) == (False, 1)
    assert fallen == DeviceDetails()
    source.recover(0)
    assert all(link.is_up for link in source.read(machine).details[0].links)
