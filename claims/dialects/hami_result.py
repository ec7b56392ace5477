"""A pod's devices in HAMi's annotations: `UUID,type,MiB,cores:` for each device, `;` after each container.

Read back by `claims.dialects.hami_slots`. Invariants: every container has a slot, init containers first, also without
devices; containers that run at once get at most what was granted of a device.
"""

from __future__ import annotations

from typing import Final

from claims.dialects.grants import GrantView, MemoryTotal, Placed
from claims.dialects.request import CORE_WHOLE, DeviceAsk
from kube.device_types import GPU
from kube.keys import HAMI_ALLOCATED, HAMI_NODE

TYPE: Final = "NVIDIA"
_MIB: Final = 1024**2


def hami_annotations(placed: Placed) -> dict[str, str]:
    """The result annotations of a pod."""
    asks = {ask.container: ask for ask in placed.request.asks}
    slots = []
    for container in placed.request.containers or tuple(asks):
        ask = asks.get(container)
        own = [] if ask is None else [one for one in placed.grants if not ask.given or one.minor in ask.given]
        slots.append("".join(_device(ask, grant, placed.memory_total) for grant in own if ask is not None))
    return {HAMI_NODE: placed.node, HAMI_ALLOCATED: "".join(f"{slot};" for slot in slots)}


def _device(ask: DeviceAsk, grant: GrantView, memory_total: MemoryTotal | None) -> str:
    """A container's part of a device, of which the pod may hold more."""
    core = CORE_WHOLE if ask.whole else ask.core_percent or 0
    return f"{grant.uuid},{TYPE},{container_memory_mib(ask, grant, memory_total)},{core}:"


def container_memory_mib(ask: DeviceAsk, grant: GrantView, memory_total: MemoryTotal | None) -> int:
    """At most what the container requests. Percentages are of the device's whole MiB, as in HAMi."""
    total = memory_total((GPU, grant.minor)) if memory_total is not None else None
    requested = ask.memory_bytes
    if requested is None and ask.limits is not None:
        requested = ask.limits.memory_least or None
    if requested is not None:
        return requested // _MIB
    if total is None or ask.whole:
        return (grant.memory_bytes or 0) // _MIB
    return total // _MIB * (ask.memory_ratio or 0) // 100
