"""A browser that looks at the fleet, and how old what it sees is.

Used by `crowd`, whose event loop it shares, since the sender knows when each sample was sent. Invariants: what is
looked at is decoded from the bytes of the stream; ages are from the agent's own time in the sample to the arrival of
the frame that shows it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import connect

from tests.bench.agents.frames import TURN
from tests.bench.figures import quantile


class Sent:
    """When each node's newest samples were sent: [node, number modulo TURN], seconds since 1970."""

    def __init__(self, names: Sequence[str]) -> None:
        self.place = {name: at for at, name in enumerate(names)}
        self.at: NDArray[np.float64] = np.full((len(names), TURN), np.nan)


class Sight:
    """One browser. `columns`: what it asks for, which has to include utilisation."""

    def __init__(self, url: str, cookie: str, columns: str, sent: Sent) -> None:
        from tests.fleet_reader import Reader  # needs Django, which the crowd sets up first

        self._url = f"{url.replace('http', 'ws', 1)}/ws/fleet/?columns={columns}"
        self._origin = url
        self._cookie = cookie
        self._sent = sent
        self._reader = Reader()
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)
        self._nodes: NDArray[np.int64] = np.zeros(0, np.int64)
        self._before: NDArray[np.uint8] | None = None
        self.forget()

    def forget(self) -> None:
        """What was seen until now does not count."""
        self._ages: list[NDArray[np.float64]] = []
        self._waits: list[NDArray[np.float64]] = []
        self._oldest: list[NDArray[np.float64]] = []
        self._arrived: list[float] = []
        self._delivered: list[float] = []
        self._bytes = 0

    async def look(self) -> None:
        """Until cancelled."""
        headers = {"Cookie": self._cookie, "Origin": self._origin}
        async with connect(
            self._url, additional_headers=headers, compression=None, max_size=None, proxy=None
        ) as socket:
            async for message in socket:
                if isinstance(message, str):
                    self._laid_out(msgspec.json.decode(message))
                else:
                    self._seen(message, time.time())

    def _laid_out(self, layout: dict[str, Any]) -> None:
        rows, nodes, row = [], [], 0
        for name, _, _, _, devices in layout["nodes"]:
            if name in self._sent.place:
                rows.append(row)
                nodes.append(self._sent.place[name])
            row += len(devices)
        self._rows, self._nodes, self._before = np.array(rows), np.array(nodes), None

    def _seen(self, frame: bytes, now: float) -> None:
        shown = self._reader.take(frame).values["utilisation"][self._rows]
        made: float = self._reader.header["time"]
        known = shown < TURN
        sent = np.where(known, self._sent.at[self._nodes, np.where(known, shown, 0)], np.nan)
        if self._before is not None:
            fresh = known & (shown != self._before)
            self._ages.append(now - sent[fresh])
            self._waits.append(made - sent[fresh])
            self._oldest.append(now - sent[known])
        self._before = shown.copy()
        self._arrived.append(now)
        self._delivered.append(now - made)
        self._bytes += len(frame)

    def told(self) -> dict[str, float]:
        """Seconds; ages of samples when they are first seen, of everything on the screen when a frame has come, and
        what of it was waiting for the tick.
        """
        ages, waits, screen = (_sorted(parts) for parts in (self._ages, self._waits, self._oldest))
        gaps = sorted(np.diff(self._arrived).tolist()) or [0.0]
        delivered = sorted(self._delivered) or [0.0]
        return {
            "seen": len(ages),
            "frames": len(self._arrived),
            "age_p50": quantile(ages, 0.5),
            "age_p99": quantile(ages, 0.99),
            "age_most": ages[-1],
            "wait_p50": quantile(waits, 0.5),
            "wait_p99": quantile(waits, 0.99),
            "screen_p50": quantile(screen, 0.5),
            "screen_p99": quantile(screen, 0.99),
            "screen_most": screen[-1],
            "delivery_p50": quantile(delivered, 0.5),
            "delivery_p99": quantile(delivered, 0.99),
            "gap_p50": quantile(gaps, 0.5),
            "gap_most": gaps[-1],
            "bytes_a_frame": self._bytes / max(len(self._arrived), 1),
        }


def _sorted(parts: Sequence[NDArray[np.float64]]) -> list[float]:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return sorted(values[np.isfinite(values)].tolist()) or [0.0]
