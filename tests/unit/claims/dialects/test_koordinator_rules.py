"""Koordinator's own rules beside ours: its validators, its division over devices, and what it writes for them.

The functions here say again what koordinator-sh/koordinator does in `pkg/scheduler/plugins/deviceshare`: `utils.go`
(the combinations and their validators), `devicehandler_gpu.go` and `devicehandler_default.go` (how many devices, how
much of each, the other form of memory), and `plugin.go` (the id). Where gpuplane does otherwise, the case is named.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from claims.dialects.adopted import AdoptedDevice, Adoption
from claims.dialects.parse import parse_pod
from claims.dialects.read_back import read_allocation
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Parsed, Refusal
from claims.dialects.write_back import VisibleDevices, binding_annotations
from kube.objects import Pod
from kube.quantities import parse_quantity

GI = 1024**3
TOTALS = (80 * GI, 46068 * 1024**2, 85198045184, 24576 * 1024**2 - 1)
GPU, SHARED, CORE, MEMORY, RATIO, NATIVE = "gpu", "gpu.shared", "gpu-core", "gpu-memory", "gpu-memory-ratio", "nvidia"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"

Asked = Mapping[str, int]

COMBINATIONS = {
    frozenset(names)
    for names in (
        {NATIVE},
        {GPU},
        {MEMORY},
        {RATIO},
        {CORE, MEMORY},
        {CORE, RATIO},
        {SHARED, MEMORY},
        {SHARED, RATIO},
        {SHARED, CORE, MEMORY},
        {SHARED, CORE, RATIO},
        {"rdma"},
        {"fpga"},
    )
}
VALUES = {
    NATIVE: (1, 2),
    GPU: (1, 50, 100, 101, 200),
    SHARED: (1, 2, 3),
    CORE: (1, 33, 50, 100, 101, 150, 200, 300),
    MEMORY: (7, 16 * GI, 30 * GI),
    RATIO: (1, 33, 50, 99, 100, 101, 150, 200, 300),
}


def valid(asked: Asked) -> bool:
    """Whether Koordinator lets the pod in."""
    if frozenset(asked) not in COMBINATIONS:
        return False
    if SHARED in asked:
        totals = [asked[name] for name in (CORE, RATIO) if name in asked]
        return all(total % asked[SHARED] == 0 and total // asked[SHARED] <= 100 for total in totals)
    percents = [amount for name, amount in asked.items() if name not in (MEMORY, NATIVE)]
    return all(percent <= 100 or percent % 100 == 0 for percent in percents)


def divided(asked: Asked) -> tuple[int, dict[str, int]]:
    """(devices, what of each) of a valid request for GPUs."""
    amounts = dict(asked)
    if NATIVE in amounts:
        amounts = dict.fromkeys((CORE, RATIO), 100 * amounts[NATIVE])
    elif GPU in amounts:
        amounts = dict.fromkeys((CORE, RATIO), amounts[GPU])
    count = amounts.pop(SHARED, 0)
    if not count:
        ratio = amounts.get(RATIO, 0)
        count = ratio // 100 if ratio > 100 else 1
    return count, {name: amount // count for name, amount in amounts.items()}


def written(each: Mapping[str, int], total: int) -> dict[str, int]:
    """What stands in the annotation for one device of that memory: the form of memory that was not asked is added."""
    if RATIO in each and MEMORY in each:
        return dict(each)
    if MEMORY in each:
        return {**each, RATIO: int(float(each[MEMORY]) / float(total) * 100)}
    return {**each, MEMORY: each[RATIO] * total // 100}


def names(asked: Asked) -> dict[str, str]:
    return {"nvidia.com/gpu" if name == NATIVE else f"koordinator.sh/{name}": str(n) for name, n in asked.items()}


def parse(asked: Asked) -> Parsed:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": names(asked)}}]}}
    return parse_pod(msgspec.convert(pod, Pod), find_claim=lambda _namespace, _name: None)


def mixes() -> Iterator[dict[str, int]]:
    for chosen in itertools.product(*[(None, *values) for values in VALUES.values()]):
        mix = {name: amount for name, amount in zip(VALUES, chosen, strict=True) if amount is not None}
        if mix:
            yield mix


def each_of(ask: DeviceAsk) -> dict[str, int]:
    """The ask as Koordinator's amounts of one device."""
    if ask.whole:
        return {CORE: 100, RATIO: 100}
    amounts = {CORE: ask.core_percent, MEMORY: ask.memory_bytes, RATIO: ask.memory_ratio}
    return {name: amount for name, amount in amounts.items() if amount}


def never_fits(each: Mapping[str, int]) -> bool:
    """Koordinator lets it in and never finds a device for it."""
    return each.get(CORE, 0) > 100


def test_every_mix_of_gpu_resources() -> None:
    """DEV-3 what Koordinator refuses is refused, what it lets in is let in with the same devices, except what could
    never be served there.
    """
    seen = {"refused": 0, "same": 0, "never": 0}
    for mix in mixes():
        parsed = parse(mix)
        if not valid(mix):
            seen["refused"] += 1
            assert isinstance(parsed, Refusal), mix
            continue
        count, each = divided(mix)
        if never_fits(each):
            seen["never"] += 1
            if MEMORY not in mix:
                assert isinstance(parsed, Refusal), mix
                continue
            assert isinstance(parsed, DeviceRequest), mix  # as many devices as there are hundreds of core
            devices = mix[CORE] // 100
            assert parsed.asks == (DeviceAsk("gpu", devices, core_percent=100, memory_bytes=mix[MEMORY] // devices),)
            continue
        seen["same"] += 1
        assert isinstance(parsed, DeviceRequest), (mix, parsed)
        (ask,) = parsed.asks
        assert (ask.count, each_of(ask)) == (count, {name: amount for name, amount in each.items() if amount}), mix
    assert all(count > 10 for count in seen.values()), seen


@pytest.mark.parametrize("kind", ["rdma", "fpga"])
def test_every_amount_of_other_types(kind: str) -> None:
    """DEV-3 percents of a device, and whole devices by the hundred."""
    for amount in (1, 33, 50, 99, 100, 101, 150, 200, 300):
        parsed = parse({kind: amount})
        if not valid({kind: amount}):
            assert isinstance(parsed, Refusal), amount
            continue
        assert isinstance(parsed, DeviceRequest)
        (ask,) = parsed.asks
        count = max(1, amount // 100)
        assert (ask.count, 100 if ask.whole else ask.core_percent) == (count, amount // count)


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(
            {CORE: 100, RATIO: 200}, DeviceAsk("gpu", 2, core_percent=50, memory_ratio=100), id="two memories"
        ),
        pytest.param({CORE: 50, RATIO: 300}, DeviceAsk("gpu", 3, core_percent=16, memory_ratio=100), id="rounded down"),
        pytest.param({CORE: 200, RATIO: 200}, DeviceAsk("gpu", 2), id="two whole devices"),
        pytest.param({CORE: 300, RATIO: 100}, "core-over-100", id="three cores of one device"),
        pytest.param({CORE: 300, RATIO: 200}, "core-over-100", id="one and a half cores a device"),
    ],
)
def test_the_memory_says_how_many_devices(asked: Asked, want: DeviceAsk | str) -> None:
    """DEV-3 with a ratio, its hundreds are the devices and the core is divided among them."""
    parsed = parse(asked)
    if isinstance(want, str):
        assert isinstance(parsed, Refusal)
        assert parsed.rule == want
    else:
        assert isinstance(parsed, DeviceRequest)
        assert parsed.asks == (want,)


class Granted(msgspec.Struct, frozen=True):
    type: str
    minor: int
    uuid: str
    core_percent: int
    memory_bytes: int | None
    whole: bool


def granted(ask: DeviceAsk, total: int) -> list[Granted]:
    """What the ledger gives for the ask, on devices of that memory."""
    memory = total if ask.whole else ask.memory_bytes
    if memory is None:
        memory = (ask.memory_ratio or 0) * total // 100
    core = 100 if ask.core_percent is None else ask.core_percent
    return [Granted("gpu", minor, f"GPU-{minor}", core, memory, ask.whole) for minor in range(ask.count)]


def told_by(request: DeviceRequest, grants: list[Granted], total: int) -> dict[str, str]:
    return binding_annotations(
        request=request,
        node="n1",
        grants=grants,
        visible=VisibleDevices.UUID,
        memory_total={("gpu", minor): total for minor in range(8)}.get,
    )


def read(told: dict[str, str], request: DeviceRequest) -> tuple[AdoptedDevice, ...]:
    pod = msgspec.convert({"metadata": {"annotations": told}, "spec": {"nodeName": "n1"}}, Pod)
    found = read_allocation(pod, request=request)
    assert isinstance(found, Adoption), found
    return found.devices


def taken(device: AdoptedDevice, total: int) -> tuple[int, int, bool]:
    """(core, bytes, whole) of what was read."""
    if device.whole:
        return 100, total, True
    memory = device.memory_bytes if device.memory_bytes is not None else (device.memory_ratio or 0) * total // 100
    return device.core_percent or 0, memory, False


def told_of(told: dict[str, str]) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = json.loads(told[ALLOCATED])["gpu"]
    return devices


@pytest.mark.parametrize("total", TOTALS)
def test_every_ratio_is_written_as_asked(total: int) -> None:
    """DEV-7 33 stays 33, whatever the memory of the device; the bytes beside it are what the ledger counts."""
    for ratio in range(1, 101):
        request = parse({RATIO: ratio})
        assert isinstance(request, DeviceRequest)
        (resources,) = [one["resources"] for one in told_of(told_by(request, granted(request.asks[0], total), total))]
        assert resources["koordinator.sh/gpu-memory-ratio"] == str(ratio)
        assert parse_quantity(resources["koordinator.sh/gpu-memory"]) == ratio * total // 100


@pytest.mark.parametrize("total", TOTALS)
def test_what_is_written_for_every_mix(total: int) -> None:
    """DEV-7 LEASE-6 each device's amounts as Koordinator writes them, with its id, and read back they are what the
    ledger gave.
    """
    compared = 0
    for mix in mixes():
        request = parse(mix)
        if not valid(mix) or not isinstance(request, DeviceRequest) or never_fits(divided(mix)[1]):
            continue
        count, each = divided(mix)
        grants = granted(request.asks[0], total)
        if any((grant.memory_bytes or 0) > total for grant in grants):
            continue
        told = told_by(request, grants, total)
        want = {name: amount for name, amount in written(each, total).items() if amount or name != CORE}
        devices = told_of(told)
        assert [one["minor"] for one in devices] == list(range(count))
        assert [one["id"] for one in devices] == [f"GPU-{minor}" for minor in range(count)]
        for one in devices:
            found = {name.rpartition("/")[2]: parse_quantity(amount) for name, amount in one["resources"].items()}
            assert found == want, mix
        assert [taken(device, total) for device in read(told, request)] == [
            (grant.core_percent, grant.memory_bytes, grant.whole) for grant in grants
        ], mix
        compared += 1
    assert compared > 50


def test_a_share_of_all_that_a_device_has() -> None:
    """DEV-7 its ratio is written, since their hooks read it; who knows what the pod asked for reads a share, others a
    whole device.
    """
    total = 80 * GI
    request = DeviceRequest(
        asks=(DeviceAsk("gpu", 1, core_percent=100, memory_bytes=total),),
        dialect=Dialect.KOORDINATOR,
        key_prefix="koordinator.sh",
    )
    told = told_by(request, granted(request.asks[0], total), total)
    assert told_of(told)[0]["resources"]["koordinator.sh/gpu-memory-ratio"] == "100"
    assert read(told, request) == (AdoptedDevice(type="gpu", minor=0, core_percent=100, memory_bytes=total),)
    pod = msgspec.convert({"metadata": {"annotations": told}, "spec": {"nodeName": "n1"}}, Pod)
    found = read_allocation(pod)
    assert isinstance(found, Adoption)
    assert found.devices == (AdoptedDevice(type="gpu", minor=0),)
