"""A pod's devices in HAMi's annotations: `UUID,type,MiB,cores:` for each device, `;` after each container.

Called by `claims.dialects.write_back`; `claims.dialects.read_back` reads it again. Kept true: containers stand in the order of the pod, also
those without devices, and what all of them have of a device is what was granted of it.
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
    core, memory = grant.core_percent, grant.memory_bytes or 0
    if ask.given and not grant.whole:
        core = ask.core_percent or 0
        total = memory_total((GPU, grant.minor)) if memory_total is not None else None
        if ask.memory_bytes is not None:
            memory = ask.memory_bytes
        elif total is not None:
            memory = total * (ask.memory_ratio or 0) // 100
    core = CORE_WHOLE if grant.whole else core
    return f"{grant.uuid},{TYPE},{memory // _MIB},{core}:"
