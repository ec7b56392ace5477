"""The amounts of a share that is resized in place: which devices change, and by how much.

Called by `allocations.scheduling.resizing`. Invariants: a resize keeps the devices, and the kind of each: whole devices
stay whole; amounts follow the ask as at placement, ratios rounded down to bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from allocations.engine.decision import Grant
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest
from kube.device_types import GPU

WHOLE: Final = "it holds whole devices, which cannot be resized"
SEVERAL: Final = "its containers have shares of their own, which cannot be resized in place"


class Amounts(msgspec.Struct, frozen=True):
    """New amounts of each device of a share; None: as before. A ratio, in percent, takes the place of memory."""

    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_ratio: int | None = None


class Sizing(msgspec.Struct, frozen=True):
    """One device of the share: its grant as it is, and the new amounts."""

    grant: Grant
    core_percent: int
    memory_bytes: int

    @property
    def core_added(self) -> int:
        """Percent, negative where it shrinks."""
        return self.core_percent - self.grant.core_percent

    @property
    def memory_added(self) -> int:
        """Bytes, negative where it shrinks."""
        return self.memory_bytes - (self.grant.memory_bytes or 0)

    @property
    def grows(self) -> bool:
        """Whether it needs room."""
        return self.core_added > 0 or self.memory_added > 0

    @property
    def after(self) -> Grant:
        """The grant as it will be."""
        memory = None if self.grant.memory_bytes is None else self.memory_bytes
        return msgspec.structs.replace(self.grant, core_percent=self.core_percent, memory_bytes=memory)


class Resized(msgspec.Struct, frozen=True):
    """The request and the grants that change. `sizings`: empty where nothing does."""

    request: DeviceRequest
    sizings: tuple[Sizing, ...]


def share_of(request: DeviceRequest) -> DeviceAsk | str:
    """The ask whose devices can be resized, or why there is none: the only share, or the only one of GPUs."""
    if request.several:
        return SEVERAL
    shares = [ask for ask in request.asks if not ask.whole]
    gpus = [ask for ask in shares if ask.type == GPU]
    found = gpus or shares
    return found[0] if len(found) == 1 else WHOLE


def resized(
    request: DeviceRequest, grants: Sequence[Grant], totals: Mapping[tuple[str, int], int], amounts: Amounts
) -> Resized | str:
    """The allocation with new amounts, or the rule that they break. `totals`: bytes of each device by (type, minor)."""
    ask = share_of(request)
    if isinstance(ask, str):
        return ask
    new = _asked(ask, amounts)
    sizings = []
    for grant in grants:
        if grant.type != ask.type or grant.whole:
            continue
        total = totals.get((grant.type, grant.minor), 0)
        core, memory = new.core_percent or 0, _memory(new, grant, total)
        if memory and not total:
            return f"{grant.type} devices have no memory"
        if memory > total:
            return f"{grant.type} {grant.minor} has {total} bytes of memory, fewer than {memory}"
        if core > CORE_WHOLE:
            return f"a share has at most {CORE_WHOLE} core of a device"
        if not core and not memory:
            return "a share has core, memory or both"
        sizings.append(Sizing(grant, core, memory))
    changed = tuple(one for one in sizings if one.core_added or one.memory_added)
    asks = tuple(new if one is ask else one for one in request.asks)
    if not changed and asks == request.asks:
        return Resized(request, ())
    return Resized(msgspec.structs.replace(request, asks=asks, resized=True), changed)


def _asked(ask: DeviceAsk, amounts: Amounts) -> DeviceAsk:
    if amounts.core_percent is not None:
        ask = msgspec.structs.replace(ask, core_percent=amounts.core_percent)
    if amounts.memory_bytes is not None or amounts.memory_ratio is not None:
        ask = msgspec.structs.replace(ask, memory_bytes=amounts.memory_bytes, memory_ratio=amounts.memory_ratio)
    return ask


def _memory(ask: DeviceAsk, grant: Grant, total: int) -> int:
    """The bytes of one device. An ask without any keeps what there is: ratios are of the device that was chosen."""
    if ask.memory_bytes is not None:
        return ask.memory_bytes
    if ask.memory_ratio is not None:
        return total * ask.memory_ratio // 100
    return grant.memory_bytes or 0
