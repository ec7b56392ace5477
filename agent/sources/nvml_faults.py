"""Which of a GPU's standing counts and flags keep it from being used.

Called by `agent.sources.nvml` with every reading. These outlive a restart of the agent, which has heard of no Xid error from before it started.

By NVIDIA's "GPU Memory Error Management" and NVML's reference:

    row remapping failed     a row is bad and no spare one is left: the card is to be replaced
    row remapping pending    a bad row is still in use until the GPU is reset. Where the driver takes the page out of use meanwhile (A100, H100),
                             work may go on; on others it would meet the bad row again, and the flag does not say which
    recovery action          the driver's own verdict, where it has one: a reset, a reboot, or a drain and reset is due
    volatile uncorrectable   ECC errors since the driver was loaded: what was computed since may be wrong and the card is to be drained and reset,
                             which sets the count to 0; the driver's event of the same error makes the GPU sick for just as long

Each of them makes a GPU sick, so that nothing new is placed on it while who holds it may finish. No fault are: ECC errors over the card's whole
life (aggregate), since what they damaged has been remapped; corrected ones; remappings that were done; and a recovery action that is about
peer-to-peer traffic or another machine.
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


def unsound(fields: Mapping[str, int], *, ecc_uncorrected: float | None) -> str:
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
