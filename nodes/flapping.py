"""Flapping health: a device whose health changes again and again counts as unhealthy until it was steady for a while.

Called by `nodes.services` with locked rows, for agents' reports and inventories, and periodically. Invariants: an
unhealthy report takes effect at once; the first changes take effect as reported; from the third within `STEADY` of
one another on only the count and the last report are written: no event, no revision; a report that lasts for `STEADY`
takes effect, with one event that says how often the health changed and since when.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Final

from nodes.models import Device

STEADY: Final = timedelta(seconds=30)
"""A change within so long of the one before is flapping; a report that lasts so long is steady."""
CHANGES_BEFORE_FLAPPING: Final = 2
"""Changes in a row that take effect as reported: unhealthy and healthy again, say."""
COLUMNS: Final = ("flaps", "flaps_since", "flapped_at", "health_said")
LONGEST_REASON: Final = 200


class HealthChange(Enum):
    """What a report changed in a row."""

    NOTHING = auto()
    NOTED = auto()
    """Only `COLUMNS`."""
    CHANGED = auto()
    """Also `healthy` or `health_reason`, which placement has to see."""


def apply_report(device: Device, reason: str, *, now: datetime) -> HealthChange:
    """Apply a report to the row, which is not written. `reason`: empty for a healthy device."""
    reason = reason[:LONGEST_REASON]
    if device.health_said is not None:
        return _while_flapping(device, reason, now)
    if (device.healthy, device.health_reason) == (not reason, reason):
        return HealthChange.NOTHING
    _count(device, now)
    if device.flaps > CHANGES_BEFORE_FLAPPING:
        device.health_said = reason
        why = reason or device.health_reason
        since = f"{device.flaps_since or now:%H:%M:%S} UTC"
        device.healthy, device.health_reason = False, f"its health flaps since {since}: {why}"[:LONGEST_REASON]
    else:
        device.healthy, device.health_reason = not reason, reason
    return HealthChange.CHANGED


def _count(device: Device, now: datetime) -> None:
    if device.flapped_at is not None and now - device.flapped_at < STEADY:
        device.flaps += 1
    else:
        device.flaps, device.flaps_since = 1, now
    device.flapped_at = now


def _while_flapping(device: Device, reason: str, now: datetime) -> HealthChange:
    if device.health_said == reason:
        return HealthChange.NOTHING
    device.flaps += 1
    device.flapped_at, device.health_said = now, reason
    return HealthChange.NOTED


def was_reported_healthy(device: Device) -> bool:
    """Whether the last report said that it is healthy, also while it flaps."""
    return device.healthy if device.health_said is None else not device.health_said


def reset(device: Device) -> None:
    """Forget the changes so far, as for a device that was away."""
    device.flaps, device.flaps_since, device.flapped_at, device.health_said = 0, None, None, None


def settle(device: Device, *, now: datetime) -> str:
    """Let the last report take effect, once it is steady; how it flapped, for the event."""
    summary = f"flapped {device.flaps} times since {(device.flaps_since or now).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    reason = device.health_said or ""
    device.healthy, device.health_reason = not reason, reason
    reset(device)
    return summary
