"""Device by device: why one can or cannot serve, for the pages and endpoints that answer "why" (VIEW-3).

Called by explain selectors for one node at a time. Kept true: a device said to serve is one that
`plan` may grant; the amounts told are those of the picture given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from allocations.engine.needs import amounts
from allocations.engine.reasons import memory_text
from claims.dialects.request import CORE_WHOLE

if TYPE_CHECKING:
    from allocations.engine.picture import Picture
    from claims.dialects.request import DeviceAsk, DeviceRequest


class DeviceVerdict(NamedTuple):
    """One device of a node; `reason` is empty where it can serve."""

    uuid: str
    minor: int
    type: str
    reason: str


def explain_devices(picture: Picture, request: DeviceRequest, node_row: int) -> list[DeviceVerdict]:
    """Every device of a node, by type and minor, with why it cannot serve."""
    asks: dict[str, list[DeviceAsk]] = {}
    for ask in request.asks:
        asks.setdefault(ask.type, []).append(ask)
    verdicts = []
    for row in range(int(picture.node_start[node_row]), int(picture.node_start[node_row + 1])):
        kind = picture.types[picture.device_type[row]]
        told = [_reason(picture, ask, row) for ask in asks.get(kind, ())]
        reason = min(told, key=bool, default="not of a type asked for")  # that of the first, unless it can serve one
        verdicts.append(DeviceVerdict(picture.device_uuid[row], int(picture.device_minor[row]), kind, reason))
    return verdicts


def _reason(picture: Picture, ask: DeviceAsk, row: int) -> str:
    total, used = int(picture.memory_total[row]), int(picture.memory_used[row])
    core_free, memory_free = CORE_WHOLE - int(picture.core_used[row]), total - used
    model = picture.models[picture.device_model[row]]
    taken = amounts(ask, total)
    if not picture.device_healthy[row]:
        return "not healthy"
    if ask.models and model.casefold() not in {one.casefold() for one in ask.models}:
        return f"model {model or 'unknown'} was not asked for"
    if ask.limits is not None:
        uuid, limits = picture.device_uuid[row], ask.limits
        if not limits.permit(uuid=uuid, model=model, memory_total=total):
            return "ruled out by the pod's annotations"
    if taken is None:
        return "has no memory to share"
    if taken[1] > total:
        return f"{memory_text(taken[1])} memory asked, the device has {memory_text(total)}"
    if ask.whole and (core_free < CORE_WHOLE or used):
        return "in use, a whole device is asked"
    if taken[0] > core_free:
        return f"{taken[0]} core asked, {core_free} free"
    if taken[1] > memory_free:
        return f"{memory_text(taken[1])} memory asked, {memory_text(memory_free)} free"
    return ""
