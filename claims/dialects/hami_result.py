"""A pod's devices in HAMi's annotations: `UUID,type,MiB,cores:` for each device, `;` after each container.

Called by `claims.dialects.write_back`; `claims.dialects.hami_slots` reads it again. Kept true: every container of the
pod has its slot, init containers first, those without devices too; and what those that run at once have of a device is
at most what was granted of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from claims.dialects.grants import GrantView, MemoryTotal
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest
from kube.device_types import GPU
from kube.keys import HAMI_ALLOCATED, HAMI_NODE

TYPE: Final = "NVIDIA"
_MIB: Final = 1024**2


def hami_annotations(
    request: DeviceRequest, node: str, grants: Sequence[GrantView], memory_total: MemoryTotal | None
) -> dict[str, str]:
    """Annotation → value."""
    asks = {ask.container: ask for ask in request.asks}
    told = []
    for container in request.containers or tuple(asks):
        ask = asks.get(container)
        own = [] if ask is None else [grant for grant in grants if not ask.given or grant.minor in ask.given]
        told.append("".join(_device(ask, grant, memory_total) for grant in own if ask is not None))
    return {HAMI_NODE: node, HAMI_ALLOCATED: "".join(f"{one};" for one in told)}


def _device(ask: DeviceAsk, grant: GrantView, memory_total: MemoryTotal | None) -> str:
    """What one container has of a device, of which the pod may hold more."""
    core = CORE_WHOLE if ask.whole else ask.core_percent or 0
    return f"{grant.uuid},{TYPE},{_memory_mib(ask, grant, memory_total)},{core}:"


def _memory_mib(ask: DeviceAsk, grant: GrantView, memory_total: MemoryTotal | None) -> int:
    """Never more than the container asks for. Percentages are of the device's whole MiB, as HAMi knows it."""
    total = memory_total((GPU, grant.minor)) if memory_total is not None else None
    asked = ask.memory_bytes if ask.memory_bytes is not None or ask.limits is None else ask.limits.memory_least or None
    if asked is not None:
        return asked // _MIB
    if total is None or ask.whole:
        return (grant.memory_bytes or 0) // _MIB
    return total // _MIB * (ask.memory_ratio or 0) // 100
