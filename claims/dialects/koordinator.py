"""Koordinator's fine-grained resources: `<prefix>/{gpu,gpu.shared,gpu-core,gpu-memory,gpu-memory-ratio,rdma,fpga}`.

The rules (DEV-3) hold within each device type, which has some of the dimensions of `kube.device_types.Dimension`.
Valid:

    units                      n ≤ 100: one device, core n and ratio n; a multiple of 100: n/100 whole devices
    memory                     one device, core 0
    ratio                      one device, or n/100 devices of ratio 100, core 0
    core + memory              core over 100: core/100 devices, the memory divided among them
    core + ratio               as many devices as the ratio alone, the core divided among them; core 100 with ratio 100
                               on each is a whole device
    shared n + any of the last four: totals over n devices; core and ratio multiples of n, at most 100 a device

Amounts are divided among the devices and rounded down, memory to bytes. Invariants: the rules are Koordinator's
(`pkg/scheduler/plugins/deviceshare` of koordinator-sh/koordinator), except for more core than one device has, which it
accepts and never places: with memory it means core/100 devices, with a ratio it is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from claims.dialects.adopted import AdoptedDevice
from claims.dialects.claim_manifest import FindClaim
from claims.dialects.definition import RESOURCE_NAMES, Candidate, DialectDefinition, ReadBack
from claims.dialects.device_json import koordinator_annotations, read_devices
from claims.dialects.native import DEVICES_MOST, with_native
from claims.dialects.refused import Refused
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect
from kube.device_types import PREFIXES, DeviceType, Dimension
from kube.keys import KOORDINATOR_ALLOCATED
from kube.objects import Pod

Amounts = Mapping[Dimension, int]
"""Requested amounts of one device type; each is above 0."""

_UNITS, _SHARED, _CORE = Dimension.UNITS, Dimension.SHARED, Dimension.CORE
_MEMORY, _RATIO = Dimension.MEMORY, Dimension.RATIO
_VALID: Final = ({_UNITS}, {_MEMORY}, {_RATIO}, {_CORE, _MEMORY}, {_CORE, _RATIO})


def koordinator_ask(device_type: DeviceType, amounts: Amounts, *, prefix: str) -> DeviceAsk:
    """The devices of one type that the amounts stand for. Raises `Refused`."""
    names = {dimension: f"{prefix}/{name}" for dimension, name in device_type.dimensions()}
    _check_combination(amounts, names)
    if _SHARED in amounts:
        count = amounts[_SHARED]
        _check_shared(amounts, count, names)
    else:
        count = _count(amounts, names)
    if count > DEVICES_MOST:
        raise Refused("too-many", f"the pod asks for more than {DEVICES_MOST} devices of type {device_type.type}")
    return _ask(device_type, amounts, count, names)


def _check_combination(amounts: Amounts, names: Mapping[Dimension, str]) -> None:
    parts = set(amounts) - {_SHARED}
    shared = _SHARED in amounts
    if parts in _VALID and not (shared and _UNITS in parts):
        return
    memory_names = " or ".join(names[dimension] for dimension in (_MEMORY, _RATIO) if dimension in names)
    if not parts:
        short = names[_SHARED].rpartition("/")[2]
        raise Refused(
            f"{short}-alone", f"{names[_SHARED]} says only how many devices; add {memory_names}", field=names[_SHARED]
        )
    if _UNITS in parts:
        others = ", ".join(name for dimension, name in names.items() if dimension in amounts and dimension != _UNITS)
        raise Refused("units-with-parts", f"{names[_UNITS]} stands alone; leave out {others}", field=names[_UNITS])
    if parts == {_CORE}:
        short = names[_CORE].rpartition("/")[2]
        raise Refused(f"{short}-alone", f"{names[_CORE]} needs {memory_names} beside it", field=names[_CORE])
    raise Refused("memory-and-ratio", f"ask for {memory_names}, not for both", field=names[_RATIO])


def _check_shared(amounts: Amounts, count: int, names: Mapping[Dimension, str]) -> None:
    for dimension in (_CORE, _RATIO):
        if dimension not in amounts:
            continue
        name, total = names[dimension], amounts[dimension]
        if total % count:
            raise Refused(
                "shared-multiple", f"{name} is a total, so it must be a multiple of {names[_SHARED]}", field=name
            )
        if total // count > CORE_WHOLE:
            raise Refused("shared-over-100", f"{name} must be at most 100 for each of {names[_SHARED]}", field=name)


def _count(amounts: Amounts, names: Mapping[Dimension, str]) -> int:
    """The number of devices: one for up to 100 percent, else one for each 100; the ratio goes before the core."""
    counts = {}
    for dimension in (_UNITS, _RATIO, _CORE):
        if dimension not in amounts:
            continue
        name, percent = names[dimension], amounts[dimension]
        if percent > CORE_WHOLE and percent % CORE_WHOLE:
            raise Refused("multiple-of-100", f"{name} over 100 must be a multiple of 100", field=name)
        counts[dimension] = max(1, percent // CORE_WHOLE)
    count = next(iter(counts.values()), 1)
    if amounts.get(_CORE, 0) // count > CORE_WHOLE:
        name = names[_CORE]
        raise Refused(
            "core-over-100", f"{name} must be at most 100 for each device that {names[_RATIO]} asks for", field=name
        )
    return count


def _ask(device_type: DeviceType, amounts: Amounts, count: int, names: Mapping[Dimension, str]) -> DeviceAsk:
    """A request for `count` devices with equal parts of the amounts."""
    units = amounts.get(_UNITS)
    if units is not None:
        core = units // count
        # A type without a memory dimension is shared by core alone.
        ratio = core if device_type.ratio else None
        if core == CORE_WHOLE:
            return DeviceAsk(type=device_type.type, count=count)
        return DeviceAsk(type=device_type.type, count=count, core_percent=core, memory_ratio=ratio)
    core = amounts.get(_CORE, 0) // count
    if _MEMORY in amounts:
        memory_bytes = amounts[_MEMORY] // count
        if memory_bytes == 0:
            raise Refused("memory-too-small", f"{names[_MEMORY]} must be at least one byte for each device")
        return DeviceAsk(type=device_type.type, count=count, core_percent=core, memory_bytes=memory_bytes)
    ratio = amounts[_RATIO] // count
    if core == CORE_WHOLE and ratio == CORE_WHOLE:
        return DeviceAsk(type=device_type.type, count=count)
    return DeviceAsk(type=device_type.type, count=count, core_percent=core, memory_ratio=ratio)


def _detect(candidate: Candidate, _before: Collection[str]) -> bool:
    return bool(candidate.types)


def _parse(candidate: Candidate, _find_claim: FindClaim) -> DeviceRequest:
    by_type: dict[DeviceType, dict[Dimension, int]] = defaultdict(dict)
    prefixes = set()
    for name, amount in candidate.amounts.items():
        if name in RESOURCE_NAMES:
            prefix, device_type, dimension = RESOURCE_NAMES[name]
            prefixes.add(prefix)
            by_type[device_type][dimension] = amount
    if len(prefixes) > 1:
        raise Refused(
            "mixed-prefixes",
            f"the pod mixes resources of {' and '.join(f'{prefix}/' for prefix in PREFIXES)}; keep to one prefix",
        )
    prefix = prefixes.pop()
    asks = [koordinator_ask(device_type, amounts, prefix=prefix) for device_type, amounts in by_type.items()]
    return with_native(candidate, DeviceRequest(asks=tuple(asks), dialect=Dialect.KOORDINATOR, key_prefix=prefix))


def _read(pod: Pod, request: DeviceRequest | None) -> list[AdoptedDevice]:
    asks = request.asks if request is not None else ()
    shared = {ask.type for ask in asks if not ask.whole} - {ask.type for ask in asks if ask.whole}
    return read_devices(pod.annotations[KOORDINATOR_ALLOCATED], shared=shared)


DIALECT: Final = DialectDefinition(
    name=Dialect.KOORDINATOR,
    words="Koordinator's resources",
    detect=_detect,
    parse=_parse,
    resources={name: dimension for name, (_, _, dimension) in RESOURCE_NAMES.items()},
    results=koordinator_annotations,
    exact_amounts=True,
    read_back=ReadBack(
        key=KOORDINATOR_ALLOCATED,
        read=_read,
        written_for=frozenset({Dialect.KOORDINATOR, Dialect.NATIVE}),
        devices_most=lambda _pod, request: request.devices_most,
        before_own=True,
    ),
    result_keys=frozenset({KOORDINATOR_ALLOCATED}),
)
