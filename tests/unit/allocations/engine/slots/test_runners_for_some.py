"""Runners that can start some models alone, as Kubernetes does: those with an image."""

from __future__ import annotations

import pytest

from allocations.engine.build import DeviceRow, NodeRow, build_snapshot
from allocations.engine.slots.plan import plan_slots
from allocations.engine.slots.records import Runner, Runtime, SlotInput, SlotModel, SlotRequest

GI = 1 << 30


@pytest.mark.parametrize(
    ("only", "slot", "reason"),
    [
        pytest.param(None, "new-1", "", id="any of its runtimes"),
        pytest.param(frozenset({"chat"}), "new-1", "", id="the model among others"),
        pytest.param(frozenset({"draw"}), None, "no runner has the runtime vllm", id="another model"),
        pytest.param(frozenset(), None, "no runner has the runtime vllm", id="no model"),
    ],
)
def test_only(only: frozenset[str] | None, slot: str | None, reason: str) -> None:
    """SLOT-4a a runner is no candidate for a model that it cannot start."""
    device = DeviceRow(device_id=1, uuid="GPU-0", type="gpu", minor=0, model="H100", memory_bytes=40 * GI)
    inputs = SlotInput(
        snapshot=build_snapshot([NodeRow(name="n1", devices=(device,))]),
        labels={},
        models=(SlotModel(name="chat", runtime=Runtime.VLLM, memory=10 * GI),),
        runners=(Runner(node="n1", runtimes=frozenset({"vllm"}), only=only),),
        requests=(SlotRequest("r1", "chat"),),
    )
    (served,) = plan_slots(inputs).requests
    assert (served.slot, served.reason) == (slot, reason)
