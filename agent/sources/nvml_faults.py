"""Faults by a GPU's counters and flags, which unlike Xid events outlast a restart of the agent.

Called by `agent.sources.nvml` with every reading.

By NVIDIA's "GPU Memory Error Management" and NVML's reference:

    row remapping failed     a bad row without a spare one: the card has to be replaced
    row remapping pending    a bad row is in use until the GPU is reset. A100 and H100 retire its page meanwhile, other
                             GPUs do not, and the flag does not say which
    recovery action          the driver's own verdict: a reset, a reboot, or a drain and reset is due
    volatile uncorrectable   ECC errors since the driver was loaded: results since may be wrong, and the card has to be
                             drained and reset, which sets the count to 0

Each of them makes a GPU unhealthy: nothing new is placed on it, holders may finish. No faults are ECC errors over the
card's whole life (aggregate), whose rows were remapped; corrected ones; remappings that were done; and recovery actions
about peer-to-peer traffic or another machine. A fault that the driver fails to say now is as it was said last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.protocol import BOUNDS
from agent.sources.nvml_driver import Driver, count_of
from agent.sources.nvml_fields import FIGURE, FieldValues, Key

_ACTIONS: Final = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    4: "the driver asks to drain and reset the GPU",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a reboot of the system",
}
"""By NVML's nvmlDeviceGpuRecoveryAction_t; 0 is none, 3 peer-to-peer traffic, 5 an IMEX domain."""


def fault_of(fields: Mapping[str, int], *, ecc_uncorrected: float | None) -> str:
    """What is wrong, empty for nothing. `ecc_uncorrected`: since the driver was loaded, None where unknown."""
    if fields.get("remap_failed"):
        return "row remapping failed"
    if fields.get("remap_pending"):
        return "row remapping waits for a reset of the GPU"
    if action := _ACTIONS.get(fields.get("recovery_action", 0)):
        return action
    if ecc_uncorrected:
        return "uncorrectable ECC errors since the driver was loaded"
    return ""


_ECC: Final = "ecc_uncorrected"
_KEYS: Final[tuple[Key, ...]] = (
    ("remap_failed", FIGURE), ("remap_pending", FIGURE), ("recovery_action", FIGURE), (_ECC, -1),
)  # fmt: skip


class CountedFaults:
    """Faults of a machine's GPUs by the values that were read last."""

    def __init__(self, driver: Driver) -> None:
        self._last: dict[str, dict[Key, int]] = {}
        driver.on_start(self._started)

    def _started(self, reloaded: bool) -> None:
        if reloaded:
            self._last.clear()

    def note(self, uuid: str, answers: FieldValues) -> str:
        """Note a reading of a GPU; what is wrong with it."""
        last = self._last.setdefault(uuid, {})
        for key in _KEYS:
            if key in answers.values:
                last[key] = answers.values[key]
            elif key in answers.absent:
                last.pop(key, None)
        return self.last(uuid)

    def last(self, uuid: str) -> str:
        """What was wrong with a GPU when it was read last."""
        values = {name: value for (name, _), value in self._last.get(uuid, {}).items()}
        return fault_of(values, ecc_uncorrected=count_of(values.get(_ECC), BOUNDS["ecc_uncorrected"][1]))
