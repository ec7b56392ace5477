"""The answer to a scenario (DESIGN §5), and how it looks on a terminal.

Made by `allocations.scenario.run`; encoded by REST and `manage.py simulate`. Memory in bytes, null
where the type has none. `problems` is left out where there are none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from allocations.engine.reasons import memory_text

_HEADINGS: Final = ("POD", "NODE", "DEVICES", "SUMMARY")


class DeviceResult(msgspec.Struct, frozen=True):
    """A device, or a share of one, that a pod got."""

    uuid: str
    minor: int
    type: str
    core: int
    memory: int | None


class PodDecision(msgspec.Struct, frozen=True):
    """What became of a pod. `reasons`: node → why it could not serve; a node that could is not in it."""

    pod: str
    node: str | None
    devices: tuple[DeviceResult, ...]
    reasons: dict[str, str]
    summary: str


class DeviceUsed(msgspec.Struct, frozen=True):
    """How full a device is at the end."""

    uuid: str
    core_used: int
    memory_used: int | None


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Decisions in the order of arrival; the fleet after the last; what could not be read on the way."""

    decisions: tuple[PodDecision, ...]
    fleet: dict[str, tuple[DeviceUsed, ...]]
    problems: tuple[str, ...] = ()


def table_text(result: Result) -> str:
    """Decisions, fleet and problems as aligned text."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for decision in result.decisions:
        devices = " ".join(_device_text(device) for device in decision.devices)
        rows.append((decision.pod, decision.node or "-", devices or "-", decision.summary))
    lines = _aligned(rows)
    used: list[tuple[str, ...]] = [("NODE", "DEVICE", "CORE", "MEMORY")]
    for node, devices_used in result.fleet.items():
        for device in devices_used:
            memory = "-" if device.memory_used is None else memory_text(device.memory_used)
            if device.core_used or device.memory_used:
                used.append((node, device.uuid, str(device.core_used), memory))
    total = sum(len(devices_used) for devices_used in result.fleet.values())
    lines += ["", f"{len(used) - 1} of {total} devices are used"]
    if len(used) > 1:
        lines += _aligned(used)
    lines += [f"problem: {problem}" for problem in result.problems]
    return "\n".join(lines) + "\n"


def _device_text(device: DeviceResult) -> str:
    return f"{device.type}:{device.minor}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
