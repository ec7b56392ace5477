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
about peer-to-peer traffic or another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
