"""The vocabulary of refusals: stable, without node names, and honest about what preemption could change."""

from typing import Any

import msgspec
import pytest

from allocations.engine.patch import replace_nodes
from allocations.engine.plan import plan
from allocations.engine.reasons import CLOSED, memory_text
from allocations.engine.snapshot import Withheld
from claims.dialects.request import DeviceAsk, Policy
from tests.builders import GI, MI, fleet, nic, node, pairs, request, share, told, whole

STRICT: dict[str, Any] = {"policy": Policy.CONTIGUOUS, "policy_strict": True}
FULL = {0: (100, 80 * GI), 1: (100, 80 * GI)}


@pytest.mark.parametrize(
    ("there", "asked", "want_text", "want_resolvable"),
    [
        pytest.param(node("a", gpus=2, problem="node is not ready"), whole(), "node is not ready", False, id="problem"),
        pytest.param(node("a"), whole(), "no gpu devices", False, id="no devices"),
        pytest.param(node("a", others=[nic("a", 0)]), share(core=5), "no gpu devices", False, id="other devices only"),
        pytest.param(node("a", gpus=2), request(DeviceAsk("fpga", 1)), "no fpga devices", False, id="type never seen"),
        pytest.param(node("a", gpus=2), whole(models=("B200",)), "no gpu of the models asked", False, id="model"),
        pytest.param(
            node("a", gpus=2),
            whole(3, models=("H100",)),
            "fewer than 3 gpu devices of the models asked",
            False,
            id="too few of the model",
        ),
        pytest.param(node("a", gpus=2), whole(4), "fewer than 4 gpu devices", False, id="too few"),
        pytest.param(node("a", gpus=2, sick=[0, 1]), whole(), "no healthy gpu device", False, id="none healthy"),
        pytest.param(node("a", gpus=2, sick=[0]), whole(2), "fewer than 2 healthy gpu devices", False, id="sick"),
        pytest.param(node("a", gpus=2, taken=[0, 1]), whole(), "no whole gpu device free", True, id="all taken"),
        pytest.param(node("a", gpus=2, taken=[0]), whole(2), "fewer than 2 whole gpu devices free", True, id="taken"),
        pytest.param(node("a", gpus=2, used=FULL), share(core=50), "no device with 50 core free", True, id="core"),
        pytest.param(
            node("a", gpus=2, used={0: (10, 70 * GI), 1: (10, 70 * GI)}),
            share(core=50, memory=16 * GI),
            "no device with 16 GiB memory free",
            True,
            id="memory",
        ),
        pytest.param(
            node("a", gpus=2, used={0: (90, 0), 1: (10, 70 * GI)}),
            share(core=50, ratio=25),
            "no device with 50 core and 25% memory free",
            True,
            id="core here, memory there",
        ),
        pytest.param(
            node("a", gpus=2, used={0: (90, 0)}),
            share(core=50, count=2),
            "fewer than 2 devices with 50 core free",
            True,
            id="one of two",
        ),
        pytest.param(
            node("a", gpus=2),
            share(memory=96 * GI),
            "no gpu device with 96 GiB memory",
            False,
            id="more memory than any device has",
        ),
        pytest.param(
            node("a", others=[nic("a", 0)]),
            request(DeviceAsk("rdma", 1, core_percent=0, memory_bytes=GI)),
            "rdma devices have no memory to share",
            False,
            id="a type without memory",
        ),
        pytest.param(
            node("a", others=[nic("a", 0, used=80)]),
            request(DeviceAsk("rdma", 1, core_percent=50)),
            "no rdma device with 50 core free",
            True,
            id="other types are named",
        ),
        pytest.param(
            node("a", gpus=4, links=pairs(4)),
            whole(3, **STRICT),
            "no NVLink island of 3 gpu devices",
            False,
            id="islands too small",
        ),
        pytest.param(
            node("a", gpus=4, links=pairs(4), taken=[0, 2]),
            whole(2, **STRICT),
            "no NVLink island with 2 gpu devices free",
            True,
            id="islands broken",
        ),
        pytest.param(
            node("a", gpus=2, taken=[0, 1]),
            request(DeviceAsk("gpu", 1), DeviceAsk("rdma", 1)),
            "no rdma devices",
            False,
            id="what can never be comes before what is only taken",
        ),
    ],
)
def test_reason(there, asked, want_text, want_resolvable):
    """CLAIM-4 filter rejects with the reason."""
    decision = plan(fleet(there), asked)
    ((name, reason),) = told(decision).refused()
    assert (name, reason.text, reason.resolvable) == ("a", want_text, want_resolvable)
    assert decision.summary == f"1 of 1 nodes: {want_text}"


def test_equal_reasons_count_together():
    """VIEW-3 nodes aggregated by their reason, the most frequent first."""
    nodes = [node(f"n{at}", gpus=2, taken=[0, 1]) for at in range(3)] + [node("x", problem="node is not ready")]
    decision = plan(fleet(*nodes), whole())
    assert decision.summary == "3 of 4 nodes: no whole gpu device free; 1: node is not ready"
    assert len(told(decision).reasons) == 2


def test_nodes_that_lost_have_reasons_beside_a_success():
    decision = plan(fleet(node("a", gpus=1), node("b")), whole())
    assert decision.node == "a"
    assert [(name, reason.text) for name, reason in told(decision).refused()] == [("b", "no gpu devices")]


@pytest.mark.parametrize(
    ("size", "want"),
    [
        (16 * GI, "16 GiB"),
        (2000 * MI, "2000 MiB"),
        (GI * 3 // 2, "1.5 GiB"),
        (46068 * MI, "46068 MiB"),
        (512, "512 bytes"),
        (10**9, "953.7 MiB"),
        (1536, "1.5 KiB"),
    ],
)
def test_memory_text(size, want):
    assert memory_text(size) == want


@pytest.mark.parametrize(
    ("kept", "asked", "want"),
    [
        pytest.param(
            [Withheld.MIG, Withheld.MIG],
            whole(),
            "gpu devices are in MIG mode: only their instances are given",
            id="MIG",
        ),
        pytest.param(
            [Withheld.MIG, Withheld.NOT],
            whole(2),
            "gpu devices are in MIG mode: only their instances are given",
            id="one",
        ),
        pytest.param([Withheld.CLOSED, Withheld.NOT], whole(2), f"gpu devices {CLOSED}", id="closed"),
        pytest.param(
            [Withheld.CLOSED, Withheld.CLOSED], share(core=50), f"gpu devices {CLOSED}", id="closed to shares"
        ),
        pytest.param([Withheld.CLOSED, Withheld.NOT], whole(3), "fewer than 3 gpu devices", id="too few in any case"),
        pytest.param(
            [Withheld.CLOSED, Withheld.NOT],
            whole(2, models=("B200",)),
            "no gpu of the models asked",
            id="none of the model",
        ),
    ],
)
def test_devices_that_are_kept(kept: list[Withheld], asked: Any, want: str) -> None:
    """CLAIM-4 DEV-12 well, and given to nobody: that is said, not that they are sick; preemption could not
    change it.
    """
    there = node("a", gpus=2)
    devices = tuple(msgspec.structs.replace(one, kept=why) for one, why in zip(there.devices, kept, strict=True))
    ((_, reason),) = told(plan(fleet(msgspec.structs.replace(there, devices=devices)), asked)).refused()
    assert (reason.text, reason.resolvable) == (want, False)


def test_a_device_that_is_closed_and_opened_in_a_snapshot() -> None:
    """CLAIM-4 a picture that is brought up to date says the same as a new one."""
    there = node("a", gpus=1)
    (device,) = there.devices
    closed = msgspec.structs.replace(there, devices=(msgspec.structs.replace(device, kept=Withheld.CLOSED),))
    picture = replace_nodes(fleet(there), [closed])
    assert [reason.text for _, reason in told(plan(picture, whole())).refused()] == [f"gpu devices {CLOSED}"]
    assert plan(replace_nodes(picture, [there]), whole()).node == "a"
