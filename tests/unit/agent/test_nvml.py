"""The NVML source against a driver that does everything a driver may do."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.protocol import Details, DeviceDetails, LinkDetails, MigDetails, ProcessDetails, decode, encode
from agent.sources import FALLEN, UNANSWERING, SourceAway, error_columns, within_bounds
from agent.sources.nvml import NvmlSource
from agent.sources.nvml_details import PROCESSES_MOST
from agent.sources.nvml_events import HARMLESS_XIDS
from tests.unit.agent.fake_nvml import KIB, Card, FakeNvml


class World:
    """A driver, a source on it, and a clock."""

    def __init__(self, tmp_path: Path, *cards: Card) -> None:
        self.nv = FakeNvml(*cards)
        self.now = 0.0
        self.source = NvmlSource(sys=tmp_path, nv=self.nv, clock=lambda: self.now)


def cards(count: int = 2) -> list[Card]:
    return [Card(f"GPU-{minor}", minor) for minor in range(count)]


def test_devices_by_minor_and_their_links(tmp_path: Path) -> None:
    """NODE-1 NODE-4 devices by minor, and the NVLink graph as both ends see it."""
    one, two, three = cards(3)
    one.links, two.links, three.links = [1, 1, 2, None], [0, 0], [0]
    world = World(tmp_path, two, one, three)
    machine = world.source.machine()
    assert [(gpu.minor, gpu.uuid, gpu.memory, gpu.model) for gpu in machine.gpus] == [
        (minor, f"GPU-{minor}", 80 * 2**30, "NVIDIA H100 80GB HBM3") for minor in range(3)
    ]
    assert machine.links == ((0, 1, 2), (0, 2, 1))


def test_a_machine_with_switches(tmp_path: Path) -> None:
    """NODE-4 behind NVSwitches every GPU reaches every other."""
    made = cards(4)
    for card in made:
        card.links = ["switch"] * 18
    made[3].links = ["switch"] * 17 + [None]
    machine = World(tmp_path, *made).source.machine()
    assert machine.links == ((0, 1, 18), (0, 2, 18), (0, 3, 17), (1, 2, 18), (1, 3, 17), (2, 3, 17))


def test_figures(tmp_path: Path) -> None:
    """NODE-1 units of the protocol; rates from counters."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    first = world.source.read(machine)
    assert first.columns["utilisation_percent"] == [40, 41]
    assert first.columns["power_watts"] == [350.0, 350.0]
    assert first.columns["memory_used_bytes"] == [2**30, 2**30]
    assert first.columns["temperature_celsius"] == [55, 55]
    assert "nvlink_tx_bytes" not in first.columns  # one look makes no rate
    world.now, one.nvlink, one.pcie = 2.0, 10, 4000
    second = world.source.read(machine)
    assert second.columns["nvlink_tx_bytes"] == [10 * KIB / 2, 0]
    assert second.columns["nvlink_rx_bytes"] == [20 * KIB / 2, 0]
    assert second.columns["pcie_tx_bytes"] == [2000, 0]
    assert "pcie_rx_bytes" not in second.columns
    assert second.health == {}


def test_details(tmp_path: Path) -> None:
    """NODE-1 per-link state, far end and errors, ECC counts, processes with memory, MIG devices."""
    one, two = cards()
    one.links, two.links = [1, 1, None], [0, 0]
    one.errors = {1: (5, 1, 9)}
    one.ecc = (12, 1)
    one.processes = {4711: 3 * 2**30, 9999: None}
    two.mig = ["1g.10gb", None, "3g.40gb"]
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    first, second = world.source.read(machine).details
    assert first == DeviceDetails(
        [
            LinkDetails(0, True, "GPU-1", 0, 0, 0),
            LinkDetails(1, True, "GPU-1", 5, 1, 9),
            LinkDetails(2, False, "", 0, 0, 0),
        ],
        12,
        1,
        [ProcessDetails(4711, "python3", 3 * 2**30), ProcessDetails(9999, "", None)],
    )
    assert second.migs == [MigDetails("MIG-1-0", "1g.10gb", 10 * 2**30), MigDetails("MIG-1-2", "3g.40gb", 10 * 2**30)]
    assert second.processes == []
    one.links[0] = None
    assert not world.source.read(machine).details[0].links[0].is_up, (
        "a link that goes down is seen with the next reading"
    )


def test_details_of_an_older_gpu(tmp_path: Path) -> None:
    """NODE-1 error fields by link number; the state from the last look at the machine; the rest is unknown, not
    zero.
    """
    (old,) = cards(1)
    old.old, old.links, old.errors, old.without = True, ["switch", "switch"], {1: (7, 0, 3)}, {"processes"}
    world = World(tmp_path, old)
    (found,) = world.source.read(world.source.machine()).details
    assert found.links == [LinkDetails(0, True, "switch"), LinkDetails(1, True, "switch", 7, 0, 3)]
    assert found.processes is None


@pytest.mark.parametrize(
    ("compute", "graphics", "want"),
    [
        pytest.param(1000, None, 1000, id="only the compute list knows it"),
        pytest.param(None, 1000, 1000, id="only the graphics list knows it"),
        pytest.param(1000, 400, 1000, id="both know it, compute lists more"),
        pytest.param(400, 1000, 1000, id="both know it, graphics lists more"),
        pytest.param(0, None, 0, id="none is used"),
        pytest.param(None, None, None, id="nobody knows it"),
    ],
)
def test_a_process_in_both_lists_keeps_its_known_memory(
    tmp_path: Path, compute: int | None, graphics: int | None, want: int | None
) -> None:
    """NODE-1 a process that computes and draws is listed twice, not always with its memory."""
    (card,) = cards(1)
    card.processes, card.graphics = {7: compute}, {7: graphics}
    world = World(tmp_path, card)
    (found,) = world.source.read(world.source.machine()).details
    assert found.processes == [ProcessDetails(7, "python3", want)]


def test_the_largest_processes(tmp_path: Path) -> None:
    """A GPU with hundreds of processes fills no frame."""
    (busy,) = cards(1)
    busy.processes = {pid: pid * 2**20 for pid in range(1, 200)}
    world = World(tmp_path, busy)
    (found,) = world.source.read(world.source.machine()).details
    assert [one.pid for one in found.processes or ()] == list(range(200 - PROCESSES_MOST, 200))


@pytest.mark.parametrize(
    "call",
    ["utilisation", "memory", "power", "temperature", "fields", "name", "minor", "events", "nvlink", "clocks", "mig"],
)
def test_what_is_not_supported_is_unknown(tmp_path: Path, call: str) -> None:
    """NODE-1 never zero, and no other figure is lost for it."""
    one, two = cards()
    one.without = {call}
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    reading = world.source.read(machine)
    column = {"utilisation": "utilisation_percent", "memory": "memory_used_bytes", "power": "power_watts"}.get(call)
    column = "temperature_celsius" if call == "temperature" else column
    for name in ("utilisation_percent", "memory_used_bytes", "power_watts", "temperature_celsius"):
        values = reading.columns[name]
        assert (values[0] is None) == (name == column)
        assert values[1] is not None
    assert reading.health == {}
    assert len(machine.gpus) == 2


def test_a_gpu_that_falls_off_the_bus(tmp_path: Path) -> None:
    """NODE-1 it is reported, the others go on, and it stays reported."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    one.lost = True
    for _ in range(2):
        reading = world.source.read(machine)
        assert reading.health == {"GPU-0": "fallen off the bus"}
        assert reading.columns["power_watts"] == [None, 350.0]
    assert [gpu.uuid for gpu in world.source.machine().gpus] == ["GPU-1"]


def test_a_gpu_that_is_there_again(tmp_path: Path) -> None:
    """NODE-1 lost for a moment only: it is well when it is listed and can be read again; an Xid fault stays."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    one.lost = True
    assert world.source.read(machine).health == {"GPU-0": FALLEN}
    one.lost = False
    assert world.source.read(machine).health == {"GPU-0": FALLEN}, "not looked at yet"
    assert world.source.machine() == machine
    assert world.source.read(machine).health == {}
    assert world.nv.event_sets == 1
    world.nv.xid(one, 79)
    world.source.read(machine)
    one.lost = True
    world.source.read(machine)
    one.lost = False
    world.source.machine()
    assert world.source.read(machine).health == {"GPU-0": "Xid 79"}


def test_a_gpu_that_is_listed_no_more(tmp_path: Path) -> None:
    """NODE-1 its old handle is not asked: what it would say is of no card that is there."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    world.nv.cards = [two]
    assert [gpu.uuid for gpu in world.source.machine().gpus] == ["GPU-1"]
    reading = world.source.read(machine)
    assert reading.health == {"GPU-0": FALLEN}
    assert reading.columns["power_watts"] == [None, 350.0]
    world.nv.cards = [one, two]
    world.source.machine()
    assert world.source.read(machine).health == {}


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(pynvml.NVML_ERROR_UNKNOWN, UNANSWERING, id="unknown error"),
        pytest.param(pynvml.NVML_ERROR_RESET_REQUIRED, UNANSWERING, id="a reset is due"),
        pytest.param(pynvml.NVML_ERROR_INVALID_ARGUMENT, UNANSWERING, id="a handle of nothing"),
        pytest.param(pynvml.NVML_ERROR_NOT_SUPPORTED, "", id="has none of all this"),
        pytest.param(pynvml.NVML_ERROR_NO_PERMISSION, "", id="must not be asked"),
    ],
)
def test_a_gpu_that_answers_nothing(tmp_path: Path, error: int, want: str) -> None:
    """NODE-1 whatever error the driver has for it, also after the machine was looked at again; and it may come back."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    one.fails = error
    for _ in range(2):
        assert world.source.read(machine).health == ({"GPU-0": want} if want else {})
        world.source.machine()
    one.fails = 0
    assert world.source.read(machine).health == {}


def test_whatever_the_reading_of_one_gpu_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NODE-1 that card is unknown, the others go on, and the log is not filled."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    one.power = None  # type: ignore[assignment]  # what no card says
    one.memory = ()  # type: ignore[assignment]  # what no card says
    for _ in range(3):
        reading = world.source.read(machine)
        assert reading.columns["power_watts"] == [None, 350.0]
        assert reading.details[0] == DeviceDetails()
        assert reading.health == {}
    assert caplog.text.count("nvml.device_unread") == 1
    assert [gpu.uuid for gpu in world.source.machine().gpus] == ["GPU-1"]


def test_names_of_processes(tmp_path: Path) -> None:
    """NODE-1 any bytes; a number that another process has now has that one's name; a look-up that failed is tried
    again.
    """
    (one,) = cards(1)
    world = World(tmp_path, one)
    machine = world.source.machine()

    def named(*pids: int) -> list[str]:
        one.processes = dict.fromkeys(pids, 1)
        return [process.name for process in world.source.read(machine).details[0].processes or ()]

    world.nv.names = {5: b"/tmp/caf\xe9", 6: b"/a/alice"}
    assert named(5, 6) == ["caf\ufffd", "alice"]
    assert named(5) == ["caf\ufffd"]
    world.nv.names[6] = b"/b/bob"
    assert named(5, 6) == ["caf\ufffd", "bob"]
    assert named(9001) == [""]
    world.nv.names[9001] = b"late"
    assert named(9001) == ["late"]


def test_a_driver_older_than_the_binding(tmp_path: Path) -> None:
    """NODE-1 what it lacks is unknown."""
    one, two = cards()
    one.without = {"newer"}
    world = World(tmp_path, one, two)
    reading = world.source.read(world.source.machine())
    assert [one.processes for one in reading.details] == [None, []]
    assert reading.columns["power_watts"] == [350.0, 350.0]


@pytest.mark.parametrize("absurd", [2**64 - 1, 2**63, -1])
def test_counts_that_cannot_be_true(tmp_path: Path, absurd: int) -> None:
    """NODE-1 a counter gone astray is unknown, makes no GPU sick, and ends no session."""
    one, two = cards()
    for card in (one, two):
        card.links = ["switch"]
    one.errors, one.ecc, one.processes = {0: (absurd, 1, absurd)}, (absurd, absurd), {7: absurd}
    one.memory, one.mig, one.nvlink = (absurd, absurd), ["1g.10gb"], absurd
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    world.source.read(machine)
    world.now = 1.0
    reading = world.source.read(machine)
    assert machine.gpus[0].memory == 0
    assert reading.health == {}
    found = reading.details[0]
    assert (found.ecc_corrected, found.ecc_uncorrected) == (None, None)
    assert found.links == [LinkDetails(0, True, "switch", None, 1, None)]
    assert found.processes == [ProcessDetails(7, "python3", None)]
    assert decode(encode(Details("b", 1, 1.0, [*reading.details])))
    columns = within_bounds({**reading.columns, **error_columns(reading.details)})
    assert columns["memory_used_bytes"] == [None, 2**30]
    assert columns["nvlink_errors"] == [1, 0]
    assert columns["ecc_uncorrected"] == [None, 0]


@pytest.mark.parametrize(
    ("wrong", "want"),
    [
        pytest.param({"remap_pending": 1}, "row remapping waits for a reset of the GPU", id="a row to be remapped"),
        pytest.param({"remap_failed": 1, "remap_pending": 1}, "row remapping failed", id="no spare row"),
        pytest.param({"ecc": (0, 1)}, "uncorrectable ECC errors since the driver was loaded", id="uncorrectable"),
        pytest.param({"recovery": 1}, "the driver asks for a reset of the GPU", id="a reset is due"),
        pytest.param({"recovery": 4}, "the driver asks to drain and reset the GPU", id="a drain is due"),
        pytest.param({"recovery": 3}, "", id="peer-to-peer traffic only"),
        pytest.param({"ecc": (500, 0)}, "", id="corrected"),
    ],
)
def test_faults_that_outlive_a_restart_of_the_agent(tmp_path: Path, wrong: dict[str, Any], want: str) -> None:
    """NODE-1 an agent that has heard of no Xid error finds what is wrong by the counts that stand."""
    one, two = cards()
    for name, value in wrong.items():
        setattr(one, name, value)
    world = World(tmp_path, one, two)
    assert world.source.read(world.source.machine()).health == ({"GPU-0": want} if want else {})


def test_faults(tmp_path: Path) -> None:
    """NODE-1 Xid and ECC health by the driver's events; what only a program did wrong is none."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    assert world.nv.listening == {"GPU-0", "GPU-1"}
    for number in sorted(HARMLESS_XIDS):
        world.nv.xid(one, number)
    assert world.source.read(machine).health == {}
    world.nv.xid(one, 79)
    world.nv.double_bit(two)
    want = {"GPU-0": "Xid 79", "GPU-1": "double-bit ECC error"}
    assert world.source.read(machine).health == want
    assert world.source.read(machine).health == want
    two.remap_failed = 1
    assert world.source.read(machine).health["GPU-1"] == "row remapping failed"


def test_a_driver_that_goes_and_comes(tmp_path: Path) -> None:
    """NODE-1 away while it is away; then everything is read anew, and old faults are over."""
    one, two = cards()
    world = World(tmp_path, one, two)
    machine = world.source.machine()
    world.nv.xid(one, 79)
    assert world.source.read(machine).health
    world.nv.loaded = False
    for _ in range(2):
        with pytest.raises(SourceAway, match="driver"):
            world.source.read(machine)
    with pytest.raises(SourceAway, match="does not answer"):
        world.source.machine()
    world.nv.loaded = True
    machine = world.source.machine()
    assert world.source.read(machine).health == {}
    assert world.nv.initialised == 2
    world.source.close()
    world.source.close()


def test_without_any_driver() -> None:
    """NODE-1 the real binding on a machine that has no driver: away, with a sentence."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(SourceAway, match="the driver does not answer"):
            NvmlSource().machine()
    else:
        pynvml.nvmlShutdown()
        assert NvmlSource().machine().gpus
