"""Which GPUs are well, on the real binding: losses that stay, events that end with their set, the NVSwitch fabric."""

from __future__ import annotations

import pynvml
import pytest

from agent.sources import FALLEN, SourceAway
from tests.fakes.nvml_stub import Stub
from tests.unit.agent.library import Look

# losses


def test_a_lost_gpu_is_lost_until_the_driver_is_asked_anew(stub: Stub, look: Look) -> None:
    """NODE-1 it stays reported while NVML says so; another start of NVML that finds it there makes it well."""
    for minor in range(2):
        stub.gpu(minor)
    machine = look.at_machine()
    assert look.after(1).health == {}
    stub.say("lose 0")
    for _ in range(3):
        reading = look.after(1)
        assert reading.health == {"GPU-0": FALLEN}
        assert reading.columns["power_watts"] == [None, 350.0]
    stub.say("found 0")
    assert look.after(1).health == {"GPU-0": FALLEN}, "the session of before still says that it is lost"
    assert look.at_machine() == machine
    assert look.after(1).health == {}
    assert stub.sessions == 2


def test_a_gpu_that_stays_lost_does_not_have_the_driver_started_at_every_look(stub: Stub, look: Look) -> None:
    """NODE-1 a start takes seconds on a machine with a dead GPU: pauses between them double."""
    for minor in range(2):
        stub.gpu(minor)
    known = look.at_machine()
    stub.say("lose 0")
    for _ in range(60):
        look.machine = known
        assert look.after(10).health == {"GPU-0": FALLEN}
        assert [gpu.uuid for gpu in look.source.machine().gpus] == ["GPU-1"]
    assert 4 <= stub.sessions <= 8
    stub.say("found 0")
    for _ in range(60):
        look.after(10)
        look.source.machine()
    assert look.after(1).health == {}, "it is there again, and NVML was started once more"
    sessions = stub.sessions
    look.source.machine()
    assert stub.sessions == sessions


XID = pynvml.nvmlEventTypeXidCriticalError


def test_faults_of_others_are_heard_after_a_loss(stub: Stub, look: Look) -> None:
    """NODE-1 the event set is of no use once one of its GPUs is lost: another is made, and once more when NVML began
    anew.
    """
    for minor in range(3):
        stub.gpu(minor)
    look.at_machine()
    stub.say("lose 0")
    look.after(1)
    stub.say(f"event 1 {XID} 79")
    assert look.after(1).health == {"GPU-0": FALLEN, "GPU-1": "Xid 79"}
    stub.say("found 0")
    look.at_machine()
    assert look.after(1).health == {"GPU-1": "Xid 79"}, "what was heard stays until the driver is loaded anew"
    stub.say(f"event 0 {XID} 95", f"event 2 {XID} 48")
    assert look.after(1).health == {"GPU-0": "Xid 95", "GPU-1": "Xid 79", "GPU-2": "Xid 48"}


def test_a_start_that_fails_is_no_other_driver(stub: Stub, look: Look) -> None:
    """NODE-1 what was heard of a GPU stays when NVML could not be started anew for another that is lost."""
    for minor in range(2):
        stub.gpu(minor)
    look.at_machine()
    stub.say(f"event 1 {XID} 79")
    look.after(1)
    stub.say("lose 0")
    assert look.after(1).health == {"GPU-0": FALLEN, "GPU-1": "Xid 79"}
    stub.say(f"init {pynvml.NVML_ERROR_UNKNOWN}")
    with pytest.raises(SourceAway, match="does not answer"):
        look.source.machine()
    stub.say("init 0", "found 0")
    look.at_machine()
    assert look.after(1).health == {"GPU-1": "Xid 79"}


def test_a_driver_that_was_loaded_anew(stub: Stub, look: Look) -> None:
    """NODE-1 what was heard before is over, and faults are heard again."""
    stub.gpu(0)
    look.at_machine()
    stub.say(f"event 0 {XID} 79")
    assert look.after(1).health == {"GPU-0": "Xid 79"}
    stub.say("driver 0")
    with pytest.raises(SourceAway, match="the driver has gone"):
        look.after(1)
    stub.say("driver 1")
    look.at_machine()
    assert look.after(1).health == {}
    stub.say(f"event 0 {XID} 48")
    assert look.after(1).health == {"GPU-0": "Xid 48"}


# the fabric

STARTED, UNDER_WAY, DONE = (
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED,
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS,
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED,
)


@pytest.mark.parametrize("version", [3, 2])
@pytest.mark.parametrize(
    ("told", "want"),
    [
        pytest.param(f"{pynvml.NVML_ERROR_NOT_SUPPORTED} 0 0 0 0", "", id="no such thing"),
        pytest.param("0 0 0 0 0", "", id="not on a fabric"),
        pytest.param(f"0 {STARTED} 0 0 0", "the GPU is not registered with its NVSwitch fabric", id="not begun"),
        pytest.param(f"0 {UNDER_WAY} 0 0 0", "the GPU is not registered with its NVSwitch fabric", id="in progress"),
        pytest.param(f"0 {DONE} 0 0 0", "", id="done"),
        pytest.param(f"0 {DONE} 0 1 1", "", id="slower, and well by the driver's word"),
        pytest.param(f"0 {DONE} 999 0 0", "registration with the NVSwitch fabric failed", id="failed"),
        pytest.param(f"0 {DONE} 0 4 0", "the NVSwitch fabric has no good route to the GPU", id="a route is recovered"),
        pytest.param(f"0 {DONE} 0 10 0", "the NVSwitch fabric has no good route to the GPU", id="no route"),
        pytest.param(f"0 {DONE} 0 500 0", "the NVSwitch fabric is not configured for the GPU", id="few NVLinks"),
        pytest.param(f"0 {DONE} 0 100 0", "", id="configured"),
    ],
)
def test_the_fabric(stub: Stub, look: Look, version: int, told: str, want: str) -> None:
    """NODE-1 CUDA does not start on a GPU that the fabric has not taken in: it is not well, by the newest answer that
    the driver gives.
    """
    stub.gpu(0, links=4)
    stub.gpu(1, links=4)
    stub.say(f"fabric-version {version}", f"fabric 0 {told}")
    look.at_machine()
    assert look.after(1).health == ({"GPU-0": want} if want else {})


def test_the_fabric_by_its_summary(stub: Stub, look: Look) -> None:
    """NODE-1 the driver's own verdict, where it has one."""
    stub.gpu(0)
    stub.say(f"fabric 0 0 {DONE} 0 0 {pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY}")
    look.at_machine()
    assert look.after(1).health == {"GPU-0": "the NVSwitch fabric is not well for the GPU"}
    stub.say(f"fabric 0 0 {DONE} 0 0 {pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY}")
    look.at_machine()
    assert look.after(1).health == {}
