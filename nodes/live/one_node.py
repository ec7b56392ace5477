"""The messages of `WS /ws/nodes/<name>/` and `WS /ws/devices/<id>/` (docs/node-stream.md).

Called by `nodes.consumers.one_node`. Pure. Invariants: a message has only what changed since the browser's last one;
processes are never in it, since who may see them depends on who holds the device.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.protocol import COLUMNS
from nodes.live.samples import DetailsView, SampleView

CHANGED: Final = '{"kind":"changed"}'
"""Something that the page shows from the database changed."""
AGAIN_SECONDS: Final = 5.0
"""How often silence is repeated: it distinguishes a silent agent from a dead connection."""


class NodeStream:
    """What one browser was sent. `uuid`: of the one device that it shows, None for a whole node."""

    def __init__(self, uuid: str | None = None) -> None:
        self._uuid = uuid
        self._devices: tuple[str, ...] | None = None
        self._columns: dict[str, list[int | None]] = {}
        self._details: str | None = None
        self._received = 0.0
        self._silent: float | None = None

    def next(self, sample: SampleView | None, details: DetailsView | None, *, now: float) -> list[str]:
        """Messages to send. `now`: seconds since 1970."""
        messages = []
        if sample is None or sample.is_old(now=now):
            if self._silent is None or abs(now - self._silent) >= AGAIN_SECONDS:  # also where the clock went back
                messages.append(_text({"kind": "silent", "since": None if sample is None else sample.received_at}))
                self._silent = now
            self._devices = None
        elif sample.received_at != self._received or self._silent is not None:
            messages.append(_text(self._sample_message(sample)))
        if details is not None and (message := _text(self._details_message(details))) != self._details:
            self._details = message
            messages.append(message)
        return messages

    def _sample_message(self, sample: SampleView) -> dict[str, Any]:
        self._silent, self._received = None, sample.received_at
        message: dict[str, Any] = {"kind": "now", "time": sample.received_at}
        rows = range(len(sample.devices))
        if self._uuid is not None:
            row = sample.row_of.get(self._uuid)
            rows = range(0) if row is None else range(row, row + 1)
        devices = tuple(sample.devices[row] for row in rows)
        if devices != self._devices:
            self._devices, self._columns = devices, {}
            message["devices"] = devices
        values = {name: [getattr(sample, name)[row] for row in rows] for name in COLUMNS}
        message["columns"] = {name: column for name, column in values.items() if self._columns.get(name) != column}
        self._columns = values
        return message

    def _details_message(self, details: DetailsView) -> dict[str, Any]:
        return {
            "kind": "details",
            "devices": {
                uuid: {"links": one.links, "ecc": [one.ecc_corrected, one.ecc_uncorrected], "migs": one.migs}
                for uuid, one in zip(details.devices, details.details, strict=True)
                if self._uuid in {None, uuid}
            },
        }


def _text(message: dict[str, Any]) -> str:
    return msgspec.json.encode(message).decode()
