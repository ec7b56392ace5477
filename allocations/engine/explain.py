"""Why single devices cannot serve a request (VIEW-3).

Called by `allocations.explain`. Invariants: each device is judged by itself, so `plan` may grant one without a reason
where its node is open and enough others serve too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from allocations.engine.needs import amounts
from allocations.engine.reasons import memory_text
from allocations.engine.snapshot import Grouped, Withheld
from claims.dialects.request import CORE_WHOLE
from kube.device_types import ledger_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.snapshot import Snapshot
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
    """Why a device cannot serve, with its own amounts and as counted over devices. Empty where it can."""

    exactly: str = ""
    counted: str = ""


def explain_devices(snapshot: Snapshot, request: DeviceRequest, node_row: int) -> list[DeviceVerdict]:
    """A verdict on every device of a node, by type and minor."""
    asks = _by_type(request)
    verdicts = []
    here = snapshot.rows_of_node(node_row)
    for row in range(here.start, here.stop):
        kind = snapshot.types[snapshot.device_type[row]]
        why = _why_not(snapshot, asks.get(kind, ()), row)
        minor = int(snapshot.device_minor[row])
        verdicts.append(DeviceVerdict(snapshot.device_uuid[row], minor, ledger_type(kind), why.exactly))
    return verdicts


def count_devices(snapshot: Snapshot, request: DeviceRequest) -> dict[str, int]:
    """Reason → number of devices of the requested types that cannot serve for it, most frequent first."""
    asks = _by_type(request)
    by_name = any(ask.limits is not None and (ask.limits.uuids or ask.limits.not_uuids) for ask in request.asks)
    columns = (
        snapshot.device_type,
        snapshot.device_model,
        snapshot.device_healthy,
        snapshot.device_kept,
        snapshot.device_group,
        snapshot.memory_total,
        snapshot.core_used,
        snapshot.memory_used,
        snapshot.device_id if by_name else snapshot.device_type,
    )
    known: dict[tuple[object, ...], str] = {}
    counts: Counter[str] = Counter()
    for row, alike in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        reason = known.get(alike)
        if reason is None:
            kind = snapshot.types[snapshot.device_type[row]]
            reason = known[alike] = _why_not(snapshot, asks[kind], row).counted if kind in asks else ""
        if reason:
            counts[reason] += 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _by_type(request: DeviceRequest) -> dict[str, list[DeviceAsk]]:
    asks: dict[str, list[DeviceAsk]] = {}
    for ask in request.asks:
        asks.setdefault(ask.type, []).append(ask)
    return asks


def _why_not(snapshot: Snapshot, asks: Sequence[DeviceAsk], row: int) -> _Why:
    """Why the device serves none of the asks: the reason of the first."""
    reasons = [_reason(snapshot, ask, row) for ask in asks]
    return min(reasons, key=lambda why: bool(why.exactly), default=_Why("not of a type asked for", "of another type"))


def _reason(snapshot: Snapshot, ask: DeviceAsk, row: int) -> _Why:
    total, used = int(snapshot.memory_total[row]), int(snapshot.memory_used[row])
    core_free, memory_free = CORE_WHOLE - int(snapshot.core_used[row]), total - used
    model = snapshot.models[snapshot.device_model[row]]
    taken = amounts(ask, total)
    if snapshot.device_group[row] == Grouped.CLOSED and not snapshot.device_kept[row]:
        return _same("its reservation pod takes nobody new")
    if not snapshot.device_healthy[row]:
        return _same(_KEPT[Withheld(int(snapshot.device_kept[row]))])
    if ask.models and model.casefold() not in {one.casefold() for one in ask.models}:
        return _Why(f"model {model or 'unknown'} was not asked for", "of another model")
    if ask.limits is not None:
        uuid, limits = snapshot.device_uuid[row], ask.limits
        if not limits.permit(uuid=uuid, model=model, memory_total=total):
            return _same("ruled out by the pod's annotations")
    if taken is None:
        return _same("has no memory to share")
    if taken[1] > total:
        asked = memory_text(taken[1])
        return _Why(f"{asked} memory asked, the device has {memory_text(total)}", f"smaller than {asked}")
    if ask.whole and (core_free < CORE_WHOLE or used or snapshot.device_group[row]):
        return _same("in use, a whole device is asked")
    if taken[0] > core_free:
        return _Why(f"{taken[0]} core asked, {core_free} free", f"less than {taken[0]} core free")
    if taken[1] > memory_free:
        asked = memory_text(taken[1])
        return _Why(f"{asked} memory asked, {memory_text(memory_free)} free", _less(ask, asked))
    return _Why()


def _same(text: str) -> _Why:
    return _Why(text, text)


def _less(ask: DeviceAsk, asked: str) -> str:
    """A ratio is another amount on each size of device."""
    return f"less than {asked if ask.memory_ratio is None else f'{ask.memory_ratio}%'} memory free"
