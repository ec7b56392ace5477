"""A fleet of any size for the fleet page, by the server's own bytes and without its database: layout, columns, ticks.

Used by the browser tests of large fleets and by the bench. The page connects to `attach`ed sockets as to the server;
`tick` moves every utilisation, and each socket is sent what the hub would have sent it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
import numpy as np
from playwright.sync_api import Page, WebSocketRoute

from nodes.consumers.fleet import BrowserMessage, requested_columns
from nodes.live.fleet_columns import COLUMNS, Columns, Figures, Flag
from nodes.live.fleet_frames import Condition, FrameSet, column_set, layout_message
from nodes.live.fleet_rows import Layout, LayoutDevice, LayoutNode

GPUS = 8
MODELS = ("H100", "A100", "H200-NVL", "L40S")
SOCKETS = re.compile(r"/ws/fleet/")
_WELL = Flag.HEALTHY | Flag.PRESENT | Flag.NODE_READY


def layout_of(nodes: int) -> Layout:
    """Nodes of eight GPUs, eight to a rack, in three pools and four models."""
    return Layout(
        tuple(
            LayoutNode(
                f"gpu-{number:05d}",
                f"r{number // 8:03d}",
                ("training", "inference", "research")[number // 8 % 3],
                "exclusive",
                tuple(
                    LayoutDevice(
                        number * GPUS + minor + 1, "gpu", minor, f"GPU-{number}-{minor}",
                        MODELS[number // 8 % len(MODELS)], 80 << 30, 0,
                    )
                    for minor in range(GPUS)
                ),
                tuple(f"GPU-{number}-{minor}" for minor in range(GPUS)),
            )
            for number in range(nodes)
        )
    )  # fmt: skip


@dataclass
class _Socket:
    route: WebSocketRoute
    wanted: int
    held: int = 0


class Feed:
    """The stream of a make-believe fleet."""

    def __init__(self, nodes: int) -> None:
        self.layout = layout_of(nodes)
        self.rows = self.layout.device_count
        self.columns = columns_for(self.rows)
        self.sequence = 1
        self.asked: list[str] = []
        self._chance = np.random.default_rng(11)
        self._previous: Columns | None = None
        self._sockets: list[_Socket] = []
        self._is_mute = False

    def attach(self, page: Page) -> None:
        """Before the page opens: its sockets end here."""
        page.route_web_socket(SOCKETS, self._opened)

    def interrupt(self) -> None:
        """Close every socket, and say nothing on those that the page opens after that."""
        self._is_mute = True
        for socket in list(self._sockets):
            socket.route.close(code=1013)

    def tick(self, **columns: np.ndarray) -> FrameSet:
        """A second later: every utilisation is another, and the columns named are as given."""
        self._previous, self.columns = self.columns, self.columns.copy()
        self.columns[2] = (self.columns[2] + self._chance.integers(1, 100, self.rows)) % 101
        for name, values in columns.items():
            self.columns[COLUMNS.index(name)] = values
        self.sequence += 1
        picture = self.picture()
        for socket in self._sockets:
            socket.route.send(picture.frame(socket.wanted, socket.held))
            socket.held = socket.wanted
        return picture

    def picture(self) -> FrameSet:
        """The frames of now."""
        given = np.maximum(self.columns[0], self.columns[1])
        used = int(np.count_nonzero(given))
        figures = Figures(self.rows, used, self.rows - used, 0, float(given.mean()), float(self.columns[2].mean()))
        return FrameSet(
            self.columns,
            self._previous,
            sequence=self.sequence,
            layout=1,
            time=float(self.sequence),
            conditions=Condition(0),
            figures=figures,
        )

    def _opened(self, route: WebSocketRoute) -> None:
        socket = _Socket(route, requested_columns(urlsplit(route.url).query.encode()))
        self._sockets.append(socket)
        route.on_message(lambda said: self._said(socket, str(said)))
        route.on_close(lambda *_: self._sockets.remove(socket))
        if not self._is_mute:
            self._whole(socket)

    def _whole(self, socket: _Socket) -> None:
        socket.route.send(layout_message(self.layout, version=1))
        socket.route.send(self.picture().frame(socket.wanted, 0))
        socket.held = socket.wanted

    def _said(self, socket: _Socket, said: str) -> None:
        self.asked.append(said)
        ask = msgspec.json.decode(said, type=BrowserMessage)
        if ask.ask == "full":
            self._whole(socket)
            return
        socket.wanted = column_set(ask.columns)
        if socket.wanted & ~socket.held:
            socket.route.send(self.picture().frame(socket.wanted, 0))
        socket.held = socket.wanted


def columns_for(rows: int) -> Columns:
    """A busy fleet: most of it given, everything measured, one GPU in 97 in each kind of trouble."""
    chance = np.random.default_rng(7)
    columns = np.zeros((len(COLUMNS), rows), np.uint8)
    columns[0] = columns[1] = chance.choice([0, 50, 100], rows, p=[0.2, 0.1, 0.7])
    columns[2:4] = chance.integers(0, 101, (2, rows))
    columns[4] = chance.integers(30, 85, rows)
    columns[5] = chance.integers(10, 118, rows)
    columns[6] = chance.integers(0, 120, rows)
    columns[7] = _WELL
    for at, flags in enumerate(
        (_WELL & ~Flag.HEALTHY, _WELL & ~Flag.NODE_READY, _WELL | Flag.HELD, _WELL | Flag.STRANGER)
    ):
        columns[7, at * 13 + 5 :: 97] = flags
    return columns
