"""One pod in, one `DeviceRequest` out, whatever dialect the pod speaks.

Called by the extender's filter, by admission, by scenarios and by reconciling. Kept true: a pod that asks in
two dialects is refused and never placed by guesswork; no pod, however
odd, raises. `nvidia.com/gpu` beside Koordinator's RDMA or FPGA is one dialect (device types may be combined);
a GpuClaim beside any resource is two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from claims.dialects.amounts import asks_any, pod_amounts
from claims.dialects.gpuclaim import FindClaim, check_claim_name, parse_claim_annotation
from claims.dialects.hami import HAMI_RESOURCES, hami_request, limits_of, with_policies
from claims.dialects.ignored import ignored_by
from claims.dialects.joint import joint_of
from claims.dialects.kai import KAI_ANNOTATIONS, kai_ask
from claims.dialects.koordinator import koordinator_ask
from claims.dialects.native import native_ask
from claims.dialects.own_keys import container_key
from claims.dialects.refused import Refused
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Parsed, Refusal
from kube.device_types import DEVICE_TYPES, GPU, PREFIXES, DeviceType, Dimension
from kube.keys import CLAIM, KOORDINATOR_PREFIX, NATIVE_GPU, VISIBLE_DEVICES
from kube.objects import Container, Pod

DEFAULT_NAMESPACE: Final = "default"

_SPOKEN: Final = {
    "gpuclaim": f"annotation {CLAIM}",
    "native": NATIVE_GPU,
    "koordinator": "Koordinator's resources",
    "hami": "HAMi's resources",
    "kai": "KAI's annotations",
}
_WITH_SCHEDULERS: Final = ("hami", "kai")


def asks_for_devices(pod: Pod, *, device_types: tuple[DeviceType, ...] = DEVICE_TYPES) -> bool:
    """Whether the pod is ours to look at: cheap, true for malformed asks too."""
    if any(is_asking_annotation(key) for key in pod.annotations):
        return True
    return asks_any(pod, _known(device_types))


def is_asking_annotation(key: str) -> bool:
    """Whether a pod with this annotation asks for devices, in any dialect."""
    return key == CLAIM or key in KAI_ANNOTATIONS


def is_asking_resource(name: str, *, device_types: tuple[DeviceType, ...] = DEVICE_TYPES) -> bool:
    """Whether a pod with this resource asks for devices, in any dialect."""
    return name in _known(device_types)


def foreign_dialect(pod: Pod) -> str | None:
    """The pod's dialect where another scheduler understands it too (`hami`, `kai`) and may be at work in the same cluster, else None."""
    try:
        spoken = _dialects(pod, pod_amounts(pod, _known(DEVICE_TYPES)), DEVICE_TYPES)
    except Refused:
        return None
    return spoken[0] if len(spoken) == 1 and spoken[0] in _WITH_SCHEDULERS else None


def parse_pod(pod: Pod, *, find_claim: FindClaim, device_types: tuple[DeviceType, ...] = DEVICE_TYPES) -> Parsed:
    """What the pod asks for, why it cannot be served, or None: it asks for no devices.

    `find_claim(namespace, name)` looks a GpuClaim up; what it raises passes through. `device_types`: the table
    of types that Koordinator's names are read by.
    """
    if not asks_for_devices(pod, device_types=device_types):
        return None
    try:
        asked = _read(pod, device_types)
        if asked.dialect is None:
            return None
        if asked.dialect is Dialect.GPUCLAIM:
            request = parse_claim_annotation(
                pod.annotations[CLAIM],
                namespace=pod.metadata.namespace or DEFAULT_NAMESPACE,
                find_claim=find_claim,
            )
            request = msgspec.structs.replace(request, uuids=_sees_uuids(pod))
        elif asked.dialect is Dialect.KAI:
            request = DeviceRequest(asks=(kai_ask(pod),), dialect=Dialect.KAI)
        elif asked.dialect is Dialect.HAMI:
            request = hami_request(pod)
        else:
            request = _resource_request(pod, asked, device_types)
        joint, ignored = joint_of(pod, request.asks), ignored_by(pod)
        if joint is None and not ignored:
            return request
        return msgspec.structs.replace(request, joint=joint, ignored=ignored)
    except Refused as refused:
        return refused.refusal


def dialect_of(pod: Pod, *, device_types: tuple[DeviceType, ...] = DEVICE_TYPES) -> Dialect | Refusal | None:
    """The pod's one dialect without its rules: a refusal for two dialects and bad amounts or names."""
    try:
        asked = _read(pod, device_types)
        if asked.dialect is Dialect.GPUCLAIM:
            check_claim_name(pod.annotations[CLAIM])
    except Refused as refused:
        return refused.refusal
    return asked.dialect


def may_leave_to_kubelet(pod: Pod) -> bool:
    """Whether a pod by `nvidia.com/gpu` asks for nothing that a kubelet could not keep to: any GPUs, and no other devices."""
    try:
        asked = _read(pod, DEVICE_TYPES)
        return asked.dialect is Dialect.NATIVE and _resource_request(pod, asked, DEVICE_TYPES).whole_native
    except Refused:
        return False


def containers_apart(pod: Pod, dialect: Dialect) -> frozenset[str]:
    """Names of the containers that see devices of their own: where a dialect plans each by itself, and several ask."""
    if dialect is not Dialect.HAMI:
        return frozenset()
    try:
        asks = hami_request(pod).asks
    except Refused:
        return frozenset()
    return frozenset(ask.container for ask in asks if len(asks) > 1 and container_key(ask.container) != VISIBLE_DEVICES)


class _Asked(msgspec.Struct, frozen=True):
    """The one dialect of a pod and its amounts by full resource name."""

    dialect: Dialect | None
    amounts: Mapping[str, int]


def _read(pod: Pod, device_types: tuple[DeviceType, ...]) -> _Asked:
    """Raises `Refused` for amounts that are no quantities, and for two dialects."""
    amounts = pod_amounts(pod, _known(device_types))
    spoken = _dialects(pod, amounts, device_types)
    if len(spoken) > 1:
        first, second = spoken[0], spoken[1]
        raise Refused(
            "two-dialects",
            f"the pod asks for devices by {_SPOKEN[first]} and by {_SPOKEN[second]}; ask in one way only",
        )
    if not spoken:
        return _Asked(dialect=None, amounts=amounts)
    return _Asked(dialect=Dialect(spoken[0]), amounts=amounts)


def _dialects(pod: Pod, amounts: Mapping[str, int], device_types: tuple[DeviceType, ...]) -> list[str]:
    spoken = []
    if CLAIM in pod.annotations:
        spoken.append("gpuclaim")
    if not KAI_ANNOTATIONS.isdisjoint(pod.annotations):
        spoken.append("kai")
    names = _names(device_types)
    types = {names[name][1].type for name in amounts if name in names}
    if not HAMI_RESOURCES.isdisjoint(amounts):
        spoken.append("hami")
    elif NATIVE_GPU in amounts and (not types or GPU in types):
        spoken.append("native")
    if types:
        spoken.append("koordinator")
    return spoken


def _resource_request(pod: Pod, asked: _Asked, device_types: tuple[DeviceType, ...]) -> DeviceRequest:
    names = _names(device_types)
    by_type: dict[DeviceType, dict[Dimension, int]] = defaultdict(dict)
    prefixes = set()
    for name, amount in asked.amounts.items():
        if name in names:
            prefix, device_type, dimension = names[name]
            prefixes.add(prefix)
            by_type[device_type][dimension] = amount
    if len(prefixes) > 1:
        raise Refused(
            "mixed-prefixes",
            f"the pod mixes resources of {' and '.join(f'{prefix}/' for prefix in PREFIXES)}; keep to one prefix",
        )
    prefix = prefixes.pop() if prefixes else KOORDINATOR_PREFIX
    asks: list[DeviceAsk] = [
        koordinator_ask(device_type, amounts, prefix=prefix) for device_type, amounts in by_type.items()
    ]
    native = NATIVE_GPU in asked.amounts
    if native:
        asks.append(native_ask(asked.amounts[NATIVE_GPU], limits=limits_of(pod)))
    asks.sort(key=lambda ask: (ask.type != GPU, ask.type))
    request = DeviceRequest(asks=tuple(asks), dialect=asked.dialect or Dialect.NATIVE, key_prefix=prefix)
    if not native:
        return request
    return with_policies(pod, msgspec.structs.replace(request, uuids=_sees_uuids(pod)))


def _sees_uuids(pod: Pod) -> bool:
    """Whether a container gets NVIDIA_VISIBLE_DEVICES from our annotation: it renumbers, so only UUIDs hold."""
    wanted = f"metadata.annotations['{VISIBLE_DEVICES}']"
    return any(
        entry.name == "NVIDIA_VISIBLE_DEVICES" and wanted in str(entry.value_from)
        for container in _containers(pod)
        for entry in container.env or ()
        if entry.value_from is not None
    )


def _containers(pod: Pod) -> list[Container]:
    return [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]


@lru_cache(maxsize=8)
def _names(device_types: tuple[DeviceType, ...]) -> Mapping[str, tuple[str, DeviceType, Dimension]]:
    """Full resource name → (prefix, type, dimension) under every prefix."""
    return {
        f"{prefix}/{name}": (prefix, device_type, dimension)
        for prefix in PREFIXES
        for device_type in device_types
        for dimension, name in device_type.dimensions()
    }


@lru_cache(maxsize=8)
def _known(device_types: tuple[DeviceType, ...]) -> Mapping[str, Dimension]:
    """Every resource name that any dialect reads."""
    known = {name: dimension for name, (_, _, dimension) in _names(device_types).items()}
    known[NATIVE_GPU] = Dimension.UNITS
    known.update(dict.fromkeys(HAMI_RESOURCES, Dimension.UNITS))
    return known
