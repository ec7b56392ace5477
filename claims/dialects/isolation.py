"""The values of the variables that keep a share to its amounts (SHARE-8), as annotations of the Binding.

Two annotations of a pod, or of each container that has devices of its own: the percentage of a device's threads, and
the memory. Formats: CUDA MPS (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=4096M`, by the ordinals of the devices inside
the container, https://docs.nvidia.com/deploy/mps/) and HAMi-core (`CUDA_DEVICE_MEMORY_LIMIT=4096m`, for each device,
https://github.com/Project-HAMi/HAMi-core). Invariants: a pod whose containers refer to the annotations always gets
them, since CUDA MPS does not say what an empty variable means; a limit is never above what was granted, except that it
is 1 MiB at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from claims.dialects.grants import GrantView, Placed
from claims.dialects.hami_result import container_memory_mib
from claims.dialects.own_keys import Isolation, container_key
from claims.dialects.request import CORE_WHOLE, DeviceAsk
from kube.device_types import GPU
from kube.keys import ISOLATION_MEMORY, ISOLATION_THREADS

_MIB: Final = 1024**2


def isolation_annotations(placed: Placed, *, by_container: bool) -> dict[str, str]:
    """The annotations of a pod, and of its containers in a dialect that plans each of them."""
    how = Isolation(placed.request.isolation)
    gpus = sorted((grant for grant in placed.grants if grant.type == GPU), key=lambda grant: grant.minor)
    annotations = {
        ISOLATION_THREADS: _threads([grant.core_percent for grant in gpus]),
        ISOLATION_MEMORY: _memory(how, [_granted_mib(placed, grant) for grant in gpus]),
    }
    for ask in placed.request.asks if by_container else ():
        key = container_key(ask.container, of=ISOLATION_THREADS)
        if not ask.given or key == ISOLATION_THREADS:
            continue
        own = [grant for grant in gpus if grant.minor in ask.given]
        annotations |= {
            key: _threads([CORE_WHOLE if ask.whole else ask.core_percent or 0]),
            container_key(ask.container, of=ISOLATION_MEMORY): _memory(how, [_asked(placed, ask, one) for one in own]),
        }
    return annotations


def _threads(cores: Sequence[int]) -> str:
    """The least core; a share without core has no limit."""
    return str(min((core for core in cores if core), default=CORE_WHOLE))


def _memory(how: Isolation, amounts: Sequence[int]) -> str:
    """HAMi-core has one limit for all devices of a container: the least, where devices differ."""
    if how is Isolation.HAMI_CORE:
        return f"{min(amounts, default=0)}m"
    return ",".join(f"{ordinal}={amount}M" for ordinal, amount in enumerate(amounts))


def _granted_mib(placed: Placed, grant: GrantView) -> int:
    """All of the device's where no memory was granted."""
    amount = grant.memory_bytes
    if not amount and placed.memory_total is not None:
        amount = placed.memory_total((grant.type, grant.minor))
    return max((amount or 0) // _MIB, 1)


def _asked(placed: Placed, ask: DeviceAsk, grant: GrantView) -> int:
    return max(container_memory_mib(ask, grant, placed.memory_total), 1)
