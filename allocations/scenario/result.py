"""The answer to a scenario, and its text for a terminal.

Made by `allocations.scenario.run`; encoded by REST and `manage.py simulate`. Memory in bytes, null where the type has
none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from allocations.engine.gguf import Estimate
from allocations.engine.reasons import memory_text
from allocations.scenario.slots.result import KeepWarmResult, RequestResult, SlotResult
from allocations.scenario.slots.table import slot_rows


class DeviceResult(msgspec.Struct, frozen=True):
    """A device, or a share of one, given to a pod."""

    uuid: str
    minor: int
    type: str
    core: int
    memory: int | None


class PodDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The decision on a pod. `reasons`: node → why it cannot serve; nodes that can are left out. `waits_for`: pods that
    have to be gone first. `scaling`: the pool whose new node will serve it; unset where the scenario has no pools.
    """

    pod: str
    node: str | None
    devices: tuple[DeviceResult, ...]
    reasons: dict[str, str]
    summary: str
    waits_for: tuple[str, ...] = ()
    scaling: str | msgspec.UnsetType | None = msgspec.UNSET


class ScalingResult(msgspec.Struct, frozen=True):
    """A node to be made, by one trigger pod for so many GPUs, and the pods that it will serve."""

    pool: str
    gpus: int
    pods: tuple[str, ...]


class EvictionResult(msgspec.Struct, frozen=True, rename={"taker": "for"}):
    """A pod that has to go. `taker`: the pod or gang that gets its devices; `by`: `reclaim` or `preempt`."""

    pod: str
    taker: str
    by: str


class QuotaResult(msgspec.Struct, frozen=True):
    """One entry of a queue, in GPUs. `fair_share`: before the decisions; `allocated`: after them."""

    models: tuple[str, ...]
    deserved: float
    limit: float | None
    fair_share: float
    allocated: float


class DeviceUsed(msgspec.Struct, frozen=True):
    """What is used of a device at the end."""

    uuid: str
    core_used: int
    memory_used: int | None


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Decisions in the order of arrival; the fleet after the last; `problems`: what could not be read.

    `evictions`: None without queues. `slots` and `requests`: None where the scenario has neither models nor runners
    nor requests. `scaling`: in the order of pools and of opening; unset where the scenario has no pools.
    """

    decisions: tuple[PodDecision, ...]
    fleet: dict[str, tuple[DeviceUsed, ...]]
    problems: tuple[str, ...] = ()
    evictions: tuple[EvictionResult, ...] | None = None
    queues: dict[str, tuple[QuotaResult, ...]] = {}
    slots: tuple[SlotResult, ...] | None = None
    requests: tuple[RequestResult, ...] | None = None
    keep_warm: tuple[KeepWarmResult, ...] = ()
    estimates: dict[str, tuple[Estimate, ...]] = {}
    scaling: tuple[ScalingResult, ...] | msgspec.UnsetType = msgspec.UNSET


def table_text(result: Result) -> str:
    """Decisions, fleet and problems as aligned text."""
    rows: list[tuple[str, ...]] = [("POD", "NODE", "DEVICES", "SUMMARY")]
    for decision in result.decisions:
        devices = " ".join(f"{device.type}:{device.minor}" for device in decision.devices)
        rows.append((decision.pod, decision.node or "-", devices or "-", decision.summary))
    lines = _aligned(rows)
    used: list[tuple[str, ...]] = [("NODE", "DEVICE", "CORE", "MEMORY")]
    for node, devices_used in result.fleet.items():
        for device in devices_used:
            if device.core_used or device.memory_used:
                memory = "-" if device.memory_used is None else memory_text(device.memory_used)
                used.append((node, device.uuid, str(device.core_used), memory))
    total = sum(len(devices_used) for devices_used in result.fleet.values())
    lines += ["", f"{len(used) - 1} of {total} devices are used"]
    if len(used) > 1:
        lines += _aligned(used)
    lines += _queue_lines(result)
    for rows in slot_rows(result.slots or (), result.requests or (), result.keep_warm, result.estimates):
        lines += ["", *_aligned(rows)]
    lines += [f"problem: {problem}" for problem in result.problems]
    return "\n".join(lines) + "\n"


def _queue_lines(result: Result) -> list[str]:
    """New nodes, evictions and queues, where there are any."""
    lines: list[str] = []
    if result.scaling:
        made = [(one.pool, str(one.gpus), " ".join(one.pods)) for one in result.scaling]
        lines += ["", *_aligned([("NEW NODE OF", "GPUS", "FOR"), *made])]
    if result.evictions:
        evicted = [("EVICTED", "FOR", "BY"), *((one.pod, one.taker, one.by) for one in result.evictions)]
        lines += ["", *_aligned(evicted)]
    if result.queues:
        rows: list[tuple[str, ...]] = [("QUEUE", "MODELS", "DESERVED", "LIMIT", "FAIR SHARE", "ALLOCATED")]
        for name, quotas in result.queues.items():
            for one in quotas:
                amounts = (one.deserved, one.limit, one.fair_share, one.allocated)
                rows.append((name, " ".join(one.models) or "all", *("-" if n is None else f"{n:g}" for n in amounts)))
        lines += ["", *_aligned(rows)]
    return lines


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
