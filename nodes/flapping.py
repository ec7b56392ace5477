"""Health that flaps: a device that is said to be sick and well by turns, or sick for ever other reasons, counts as sick until it was steady for a while.

Called by `nodes.services` with locked rows, for what agents say and for inventories; `health_settle` by the beat. Kept true: a device that is said
to be sick is sick at once; the first changes are taken as they come, and from the third within `STEADY` of one another on nothing is written but
the count and what was said last: no event, no new revision, nothing announced; what lasts for `STEADY` counts, with one event that says how often
it flapped and since when.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Final

from nodes.models import Device

STEADY: Final = timedelta(seconds=30)
"""Changes that come sooner one after the other belong together; what lasts so long is steady."""
TAKEN_AS_THEY_COME: Final = 2
"""Changes in a row of such: once sick and once well again, say."""
COLUMNS: Final = ("flaps", "flaps_since", "flapped_at", "health_said")
LONGEST_REASON: Final = 200
WELL: Final = "said to be well"


class Heeded(Enum):
    """What a report changed of a row."""

    NOTHING = auto()
    NOTED = auto()
    """`COLUMNS` alone."""
    CHANGED = auto()
    """`healthy` or `health_reason`, too: placement has to see it."""


def heed(device: Device, reason: str, *, now: datetime) -> Heeded:
    """Take what was said of the device's health into the row, not written yet. `reason` empty: it is well."""
    reason = reason[:LONGEST_REASON]
    if device.health_said is not None:
        return _while_flapping(device, reason, now)
    if (device.healthy, device.health_reason) == (not reason, reason):
        return Heeded.NOTHING
    _count(device, now)
    if device.flaps > TAKEN_AS_THEY_COME:
        device.health_said = reason
        told = reason or device.health_reason
        since = f"{device.flaps_since or now:%H:%M:%S} UTC"
        device.healthy, device.health_reason = False, f"its health flaps since {since}: {told}"[:LONGEST_REASON]
    else:
        device.healthy, device.health_reason = not reason, reason
    return Heeded.CHANGED


def _count(device: Device, now: datetime) -> None:
    if device.flapped_at is not None and now - device.flapped_at < STEADY:
        device.flaps += 1
    else:
        device.flaps, device.flaps_since = 1, now
    device.flapped_at = now


def _while_flapping(device: Device, reason: str, now: datetime) -> Heeded:
    if device.health_said == reason:
        return Heeded.NOTHING
    device.flaps += 1
    device.flapped_at, device.health_said = now, reason
    return Heeded.NOTED


def is_said_well(device: Device) -> bool:
    """Whether it was said to be well last, whatever it counts as."""
    return device.healthy if device.health_said is None else not device.health_said


def forget(device: Device) -> None:
    """The row begins anew, as that of a device that was away."""
    device.flaps, device.flaps_since, device.flapped_at, device.health_said = 0, None, None, None


def settle(device: Device, *, now: datetime) -> str:
    """What was said last counts from now on, where it has lasted; how it flapped, for the event, empty where it has not lasted yet."""
    if device.health_said is None or device.flapped_at is None or now - device.flapped_at < STEADY:
        return ""
    told = f"flapped {device.flaps} times since {(device.flaps_since or now).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    device.healthy, device.health_reason = not device.health_said, device.health_said
    forget(device)
    return told
