"""Device by device: why one can or cannot serve, for the pages and endpoints that answer "why" (VIEW-3).

Called by explain selectors. Kept true: a device is looked at by itself, so one said to serve is one
that `plan` may grant where its node is open and enough others serve too; the amounts told are those of the picture given.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from allocations.engine.needs import amounts
from allocations.engine.picture import Withheld
from allocations.engine.reasons import memory_text
from claims.dialects.request import CORE_WHOLE
from kube.device_types import ledger_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.picture import Picture
    from claims.dialects.request import DeviceAsk, DeviceRequest


_KEPT = {
    Withheld.NOT: "not healthy",
    Withheld.MIG: "in MIG mode: only its instances are given",
    Withheld.CLOSED: "closed: held outside gpuplane, or it is not known who holds it",
}


class DeviceVerdict(NamedTuple):
    """One device of a node; `reason` is empty where it can serve."""

    uuid: str
    minor: int
    type: str
    reason: str


class _Why(NamedTuple):
    """Why a device cannot serve: with its own amounts, and as it is counted together with others. Empty where it can."""

    exactly: str = ""
    counted: str = ""

    @classmethod
    def plainly(cls, text: str) -> _Why:
        """The same either way."""
        return cls(text, text)


def explain_devices(picture: Picture, request: DeviceRequest, node_row: int) -> list[DeviceVerdict]:
    """Every device of a node, by type and minor, with why it cannot serve."""
    asks = _by_type(request)
    verdicts = []
    for row in range(int(picture.node_start[node_row]), int(picture.node_start[node_row + 1])):
        kind = picture.types[picture.device_type[row]]
        why = _why_not(picture, asks.get(kind, ()), row)
        minor = int(picture.device_minor[row])
        verdicts.append(DeviceVerdict(picture.device_uuid[row], minor, ledger_type(kind), why.exactly))
    return verdicts


def count_devices(picture: Picture, request: DeviceRequest) -> dict[str, int]:
    """Reason → how many devices of the fleet cannot serve for it, of the types asked for, most frequent first."""
    asks = _by_type(request)
    by_name = any(ask.limits is not None and (ask.limits.uuids or ask.limits.not_uuids) for ask in request.asks)
    columns = (
        picture.device_type,
        picture.device_model,
        picture.device_healthy,
        picture.device_kept,
        picture.memory_total,
        picture.core_used,
        picture.memory_used,
        picture.device_id if by_name else picture.device_type,
    )
    known: dict[tuple[object, ...], str] = {}
    counts: Counter[str] = Counter()
    for row, alike in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        told = known.get(alike)
        if told is None:
            kind = picture.types[picture.device_type[row]]
            told = known[alike] = _why_not(picture, asks[kind], row).counted if kind in asks else ""
        if told:
            counts[told] += 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _by_type(request: DeviceRequest) -> dict[str, list[DeviceAsk]]:
    asks: dict[str, list[DeviceAsk]] = {}
    for ask in request.asks:
        asks.setdefault(ask.type, []).append(ask)
    return asks


def _why_not(picture: Picture, asks: Sequence[DeviceAsk], row: int) -> _Why:
    """Why the device serves none of the asks: what is said of the first."""
    told = [_reason(picture, ask, row) for ask in asks]
    return min(told, key=lambda why: bool(why.exactly), default=_Why("not of a type asked for", "of another type"))


def _reason(picture: Picture, ask: DeviceAsk, row: int) -> _Why:
    total, used = int(picture.memory_total[row]), int(picture.memory_used[row])
    core_free, memory_free = CORE_WHOLE - int(picture.core_used[row]), total - used
    model = picture.models[picture.device_model[row]]
    taken = amounts(ask, total)
    if not picture.device_healthy[row]:
        return _Why.plainly(_KEPT[Withheld(int(picture.device_kept[row]))])
    if ask.models and model.casefold() not in {one.casefold() for one in ask.models}:
        return _Why(f"model {model or 'unknown'} was not asked for", "of another model")
    if ask.limits is not None:
        uuid, limits = picture.device_uuid[row], ask.limits
        if not limits.permit(uuid=uuid, model=model, memory_total=total):
            return _Why.plainly("ruled out by the pod's annotations")
    if taken is None:
        return _Why.plainly("has no memory to share")
    if taken[1] > total:
        asked = memory_text(taken[1])
        return _Why(f"{asked} memory asked, the device has {memory_text(total)}", f"smaller than {asked}")
    if ask.whole and (core_free < CORE_WHOLE or used):
        return _Why.plainly("in use, a whole device is asked")
    if taken[0] > core_free:
        return _Why(f"{taken[0]} core asked, {core_free} free", f"less than {taken[0]} core free")
    if taken[1] > memory_free:
        asked = memory_text(taken[1])
        return _Why(f"{asked} memory asked, {memory_text(memory_free)} free", _less(ask, asked))
    return _Why()


def _less(ask: DeviceAsk, asked: str) -> str:
    """A ratio is another amount on each size of device."""
    return f"less than {asked if ask.memory_ratio is None else f'{ask.memory_ratio}%'} memory free"
