"""The NVML source on the real binding, over a library that honours scopes, value types and 32-bit counters."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from agent.protocol import DeviceDetails
from agent.sources import error_columns
from agent.sources.recorded import RecordedSource
from tests.fakes.nvml_stub import ALL_LINKS, HBM, USED, Stub, behind_pynvml, gpu_lines, library
from tests.unit.agent.library import Look

KIB = 1024
LINKS = 18
TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
XMIT = pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES
RCV = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES
PCIE_TX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES
STATE = pynvml.NVML_FI_DEV_NVLINK_GET_STATE
UINT = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT


# figures


def test_nvlink_traffic_is_that_of_all_links(stub: Stub, look: Look) -> None:
    """NODE-1 the counters are by link; those of one are not those of the GPU."""
    stub.gpu(0, links=LINKS)
    stub.nvlink_bytes(0, TX, links=LINKS, rate_a_link=1000)
    stub.nvlink_bytes(0, RX, links=LINKS, rate_a_link=2000)
    look.at_machine()
    look.after(0)
    columns = look.after(1).columns
    assert columns["nvlink_tx_bytes"] == [1000 * 171 * KIB]
    assert columns["nvlink_rx_bytes"] == [2000 * 171 * KIB]


def test_asking_for_one_link_gives_what_that_link_did(stub: Stub) -> None:
    """The stand-in honours scopes: without one it is link 0's counter, and a scope that no link has is none."""
    stub.gpu(0, links=LINKS)
    stub.nvlink_bytes(0, TX, links=LINKS, rate_a_link=1000)
    stub.say("advance 1000000")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    asked = [TX, (TX, 3), (TX, ALL_LINKS), (TX, 40)]
    found = pynvml.nvmlDeviceGetFieldValues(handle, asked)
    assert [one.value.ullVal for one in found[:3]] == [1000, 4000, 171_000]
    assert found[3].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize("has_both", [pytest.param(False, id="alone"), pytest.param(True, id="beside older ones")])
def test_nvlink_traffic_of_blackwell(stub: Stub, look: Look, has_both: bool) -> None:
    """NODE-1 NVLink 5 has counters of its own, in bytes; errors by link come from them, too."""
    stub.gpu(0, model="NVIDIA B200", links=LINKS)
    if has_both:
        stub.nvlink_bytes(0, TX, links=LINKS, rate_a_link=0)
        stub.nvlink_bytes(0, RX, links=LINKS, rate_a_link=0)
    stub.nvlink_bytes(0, XMIT, links=LINKS, rate_a_link=1000)
    stub.nvlink_bytes(0, RCV, links=LINKS, rate_a_link=3000)
    for link in range(LINKS):
        stub.field(0, pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, 5 if link == 2 else 0, scope=link)
        stub.field(0, pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 2 if link == 7 else 0, scope=link)
    look.at_machine()
    look.after(0)
    reading = look.after(1)
    assert reading.columns["nvlink_tx_bytes"] == [171_000]
    assert reading.columns["nvlink_rx_bytes"] == [513_000]
    links = reading.details[0].links
    assert (links[2].crc_errors, links[7].recovery_errors, links[7].replay_errors) == (5, 2, None)
    assert error_columns(reading.details)["nvlink_errors"] == [7]


@pytest.mark.parametrize(
    "rate", [pytest.param(3e6, id="idle"), pytest.param(3e9, id="wraps at times"), pytest.param(25e9, id="wraps often")]
)
def test_pcie_counters_of_32_bits_are_unwrapped(stub: Stub, look: Look, rate: float) -> None:
    """NODE-1 they begin anew every 4 GiB, several times a second on a busy GPU, and the rate is that of the traffic."""
    stub.gpu(0)
    stub.field(0, PCIE_TX, 2**32 - 1000, kind=UINT, rate=rate)
    stub.say("call 400")
    look.at_machine()
    look.after(0)
    for _ in range(5):
        (found,) = look.after(1).columns["pcie_tx_bytes"]
        assert found == pytest.approx(rate, rel=0.01)


def test_pcie_counters_of_64_bits_go_past_4_gib(stub: Stub, look: Look) -> None:
    """NODE-1 and one that began anew is no traffic."""
    stub.gpu(0)
    stub.field(0, PCIE_TX, 2**32 - 1000, rate=25e9)
    look.at_machine()
    look.after(0)
    assert look.after(1).columns["pcie_tx_bytes"] == [pytest.approx(25e9)]
    stub.field(0, PCIE_TX, 0)
    assert "pcie_tx_bytes" not in look.after(1).columns


@pytest.mark.parametrize(
    ("kind", "value", "want"),
    [
        pytest.param(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 7, 7, id="unsigned int"),
        pytest.param(pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, 7, 7, id="unsigned long"),
        pytest.param(pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 7, 7, id="unsigned long long"),
        pytest.param(pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG, 7, 7, id="signed long long"),
        pytest.param(pynvml.NVML_VALUE_TYPE_SIGNED_INT, 7, 7, id="signed int"),
        pytest.param(pynvml.NVML_VALUE_TYPE_SIGNED_INT, -1, None, id="signed int below zero"),
        pytest.param(pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT, 7, 7, id="unsigned short"),
        pytest.param(pynvml.NVML_VALUE_TYPE_DOUBLE, 7, 7, id="double"),
        pytest.param(99, 7, None, id="a type of tomorrow"),
    ],
)
def test_value_types(stub: Stub, look: Look, kind: int, value: int, want: int | None) -> None:
    """NODE-1 a value is what its type says, not whatever stands in the rest of the union."""
    stub.gpu(0)
    stub.field(0, pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, value, kind=kind)
    look.at_machine()
    assert look.after(0).details[0].ecc_corrected == want


@pytest.mark.parametrize("old", [pytest.param(False, id="today's driver"), pytest.param(True, id="before 510")])
def test_memory_in_use_is_as_nvidia_smi_shows_it(tmp_path: Path, old: bool) -> None:
    """NODE-1 without what the driver keeps to itself, where it tells the two apart."""
    with behind_pynvml(old=old) as stub:
        stub.gpu(0)
        look = Look(stub, tmp_path)
        assert look.at_machine().gpus[0].memory == HBM
        assert look.after(0).columns["memory_used_bytes"] == [USED if not old else USED + 600 * 2**20]
        look.source.close()


# links


def test_a_link_that_does_not_answer_does_not_end_the_scan(stub: Stub, look: Look) -> None:
    """NODE-1 NODE-4 the links behind it are seen; it is neither up nor down, and counts as it did when it last
    answered.
    """
    for minor in range(2):
        stub.gpu(minor, links=LINKS)
    stub.say(f"link 0 3 {pynvml.NVML_ERROR_TIMEOUT} 1 2 00000000:05:00.0")
    assert look.at_machine().links == ((0, 1, 17),)
    numbers = [link.number for link in look.after(0).details[0].links]
    assert numbers == [link for link in range(LINKS) if link != 3]
    stub.say("link 0 3 0 1 2 00000000:05:00.0")
    assert look.at_machine().links == ((0, 1, 18),)
    stub.say(f"link 0 3 {pynvml.NVML_ERROR_UNKNOWN} 1 2 00000000:05:00.0")
    assert look.at_machine().links == ((0, 1, 18),), "no new inventory for a link that is slow"
    reading = look.after(0)
    assert [link.number for link in reading.details[0].links] == numbers
    assert error_columns(reading.details)["nvlinks_down"] == [0, 0]


def test_a_link_that_stops_to_answer_between_two_looks(stub: Stub, look: Look) -> None:
    """NODE-1 its state is unknown with the next reading, never that of before."""
    stub.gpu(0, links=4)
    for link in range(4):
        stub.field(0, STATE, 1, scope=link, kind=UINT)
    look.at_machine()
    assert [link.number for link in look.after(0).details[0].links] == [0, 1, 2, 3]
    stub.say(f"link 0 1 {pynvml.NVML_ERROR_TIMEOUT} 1 2 00000000:05:00.0")
    assert [link.number for link in look.after(0).details[0].links] == [0, 2, 3]


def test_a_machine_without_nvlink(stub: Stub, look: Look) -> None:
    """NODE-4 no link, and no question about each of 36."""
    stub.gpu(0)
    assert look.at_machine().links == ()
    assert look.after(0).details == [DeviceDetails(processes=[])]


# MIG

GIB = 2**30


def test_mig_instances_are_devices(stub: Stub, look: Look) -> None:
    """NODE-1 each with its own UUID, memory and minor, beside the GPU that it is a part of."""
    for minor in range(2):
        stub.gpu(minor)
    whole = look.at_machine()
    assert [(one.mig, one.parent) for one in whole.devices] == [(False, ""), (False, "")]
    stub.say(
        "mig 1 1",
        f"part 1 0 7 0 {10 * GIB} MIG-a NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        f"part 1 1 9 0 {10 * GIB} - -",
        f"part 1 2 1 2 {40 * GIB} MIG-b NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb",
    )
    machine = look.at_machine()
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-0", "GPU-1"]
    assert [gpu.mig for gpu in machine.gpus] == [False, True]
    parts = [one for one in machine.devices if one.parent]
    assert [(one.uuid, one.minor, one.parent, one.profile, one.memory, one.model) for one in parts] == [
        ("MIG-b", 1000 + 128 + 8 + 2, "GPU-1", "1c.3g.40gb", 40 * GIB, "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"),
        ("MIG-a", 1000 + 128 + 56, "GPU-1", "1g.10gb", 10 * GIB, "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ]
    reading = look.after(1)
    assert [len(column) for column in reading.columns.values()] == [2] * len(reading.columns)
    assert [mig.uuid for mig in reading.details[1].migs] == ["MIG-a", "MIG-b"]
    stub.say("mig 1 0")
    assert look.at_machine() == whole


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetMaxMigDeviceCount"]
)
def test_a_mig_instance_is_not_gone_because_the_driver_is_slow(stub: Stub, look: Look, call: str) -> None:
    """NODE-1 an error that is no answer takes no device away that somebody may hold."""
    stub.gpu(0)
    stub.say("mig 0 1", f"part 0 0 7 0 {10 * GIB} MIG-a NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    known = look.at_machine()
    assert len(known.devices) == 2
    stub.say(f"returns 0 {call} {pynvml.NVML_ERROR_TIMEOUT}")
    assert look.at_machine() == known
    stub.say(f"returns 0 {call} 0", "mig 0 0")
    assert len(look.at_machine().devices) == 1


def test_where_a_gpu_is(stub: Stub, look: Look) -> None:
    """NODE-1 its address on the PCI bus, as Linux writes it."""
    stub.gpu(0)
    stub.say("gpu 1 GPU-1 00010000:3B:00.0 NVIDIA GB200")
    assert [gpu.busid for gpu in look.at_machine().gpus] == ["0000:10:00.0", "10000:3b:00.0"]


def test_the_program_finds_the_library_by_its_name(tmp_path: Path) -> None:
    """NODE-1 `python -m agent` on this library, as on a driver: its recording is played like that of a real machine."""
    script, recording = tmp_path / "script", tmp_path / "recording.jsonl"
    lines = [*gpu_lines(0, links=LINKS), *gpu_lines(1, links=LINKS), "process 0 4711 1073741824", "call 100"]
    script.write_text("\n".join(lines) + "\n")
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GPUPLANE_")},
        "LD_LIBRARY_PATH": str(library().parent),
        "NVML_STUB_SCRIPT": str(script),
    }
    command = [
        sys.executable,
        "-m",
        "agent",
        "--server",
        "http://127.0.0.1:9",
        "--checkpoint",
        "",
        "--sys",
        str(tmp_path),
    ]
    with subprocess.Popen(
        [*command, "--record", str(recording)],
        env=environment,
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not recording.exists() or recording.read_bytes().count(b'{"reading"') < 2:
                assert process.poll() is None, "the program has ended"
                assert time.monotonic() < deadline, "nothing is recorded"
                time.sleep(0.05)
        finally:
            process.terminate()
            assert process.wait(20) == 0
    played = RecordedSource(recording)
    machine = played.machine()
    assert (machine.links, machine.types) == (((0, 1, LINKS),), ("gpu", "rdma"))
    reading = played.read(machine)
    assert reading.columns["memory_used_bytes"] == [USED, USED]
    assert [process.name for process in reading.details[0].processes or ()] == ["of-4711"]
