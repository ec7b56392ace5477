"""The connection to gpuplane: one session after another over `WS /ws/runners/<node>/` (docs/runner-protocol.md).

Run by `runner.__main__` beside the program, on one event loop. Invariants: every report is complete, so none has to be
sent again; a report follows each change, and each REPORT_SECONDS; a session that ends is followed by another after a
pause that doubles, with jitter, a long one where the server blames the runner; token and CA are read for each session.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from runner.program import Program
from runner.protocol import (
    DESIRED_LIMIT,
    Desired,
    FrameError,
    Hello,
    LogTail,
    Offer,
    Report,
    RunnerFrame,
    SlotId,
    Welcome,
    decode_server,
    encode,
)

OPEN_SECONDS: Final = 15.0
WELCOME_SECONDS: Final = 15.0
REPORT_SECONDS: Final = 4.0
BETWEEN_SECONDS: Final = 0.2
"""Between two reports at least: with logs, below the ten frames a second that a runner may send."""
OFFER_SECONDS: Final = 30.0
LOG_SECONDS: Final = 1.0
STEADY_SECONDS: Final = 30.0
"""After a session that lasted so long the next pause is short."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 10.0
OUR_FAULT_PAUSE: Final = 30.0
OUR_FAULTS: Final = frozenset({1003, 1008, 1009})
"""Close codes that blame the runner, or say that another one speaks for the node."""

log = structlog.get_logger(__name__)


class Ended(Exception):
    """The session ended; the text says why."""


class Session:
    """Keeps one node's runner connected. `token` is called before each session."""

    def __init__(
        self,
        *,
        url: str,
        node: str,
        host: str,
        version: str,
        token: Callable[[], str],
        program: Program,
        ca_file: Path | None = None,
    ) -> None:
        """`host`: where slots are reached; `ca_file`: CAs to trust instead of the system's, for an https URL."""
        self._url = f"{url.replace('http', 'ws', 1).rstrip('/')}/ws/runners/{node}/"
        self._node = node
        self._host = host
        self._version = version
        self._token = token
        self._program = program
        self._ca_file = ca_file
        self._boot = secrets.token_hex(8)
        self._seq = 0
        self._logs: dict[SlotId, str] = {}
        """Slots whose log is read now, with what was sent of it."""

    async def run(self) -> None:
        """Hold sessions until cancelled."""
        attempt = 0
        while True:
            began = time.monotonic()
            longest = LONGEST_PAUSE
            try:
                await self._connect_once()
            except ConnectionClosed as error:
                code = error.rcvd.code if error.rcvd else None
                log.warning("session.ended", code=code, why=error.rcvd.reason if error.rcvd else "lost")
                longest = OUR_FAULT_PAUSE if code in OUR_FAULTS else LONGEST_PAUSE
            except InvalidStatus as error:
                log.warning("session.refused", status=error.response.status_code)
            except (OSError, WebSocketException, TimeoutError, FrameError, Ended) as error:
                log.warning("session.ended", why=str(error) or type(error).__name__)
            attempt = 1 if time.monotonic() - began > STEADY_SECONDS else attempt + 1
            await asyncio.sleep(pause_seconds(attempt, longest=longest))

    async def _connect_once(self) -> None:
        async with connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._token()}"},
            open_timeout=OPEN_SECONDS,
            close_timeout=1,
            compression=None,
            proxy=None,
            max_size=DESIRED_LIMIT,
            ssl=ssl.create_default_context(cafile=self._ca_file) if self._url.startswith("wss:") else None,
        ) as socket:
            await self._begin(socket)
            work = [
                asyncio.create_task(one)
                for one in (self._read(socket), self._report(socket), self._offer(socket), self._tail(socket))
            ]
            try:
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)

    async def _begin(self, socket: ClientConnection) -> None:
        """Say who this is, and what runs, before anything is wanted."""
        self._logs.clear()
        hello = Hello(*self._stamp(), self._node, self._program.state.instance, self._version, self._host)
        await self._send(socket, hello)
        async with asyncio.timeout(WELCOME_SECONDS):
            answer = await socket.recv(decode=False)
        if not isinstance(decode_server(answer), Welcome):
            raise Ended("the server did not answer hello")
        log.info("session.open", node=self._node)

    async def _read(self, socket: ClientConnection) -> None:
        """Take what is wanted."""
        async for message in socket:
            if not isinstance(message, bytes):
                continue
            frame = decode_server(message)
            if isinstance(frame, Desired):
                self._program.apply(frame)
                self._logs = {slot: self._logs.get(slot, "") for slot in frame.logs}
        raise Ended("the server ended the session")

    async def _report(self, socket: ClientConnection) -> None:
        """Report at once, after each change, and now and then."""
        changed = self._program.changed
        while True:
            changed.clear()
            await self._send(socket, Report(*self._stamp(), self._program.reports()))
            sent = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await changed.wait()
            await asyncio.sleep(max(0.0, sent + BETWEEN_SECONDS - time.monotonic()))

    async def _offer(self, socket: ClientConnection) -> None:
        """Say what slots can be, whenever it changes."""
        said: tuple[list[str], list[str]] | None = None
        while True:
            try:
                offer = await asyncio.to_thread(self._program.offer)
            except OSError as error:  # a disk that fails ends no session
                log.warning("session.models_unread", why=str(error))
            else:
                if offer != said:
                    await self._send(socket, Offer(*self._stamp(), *offer))
                    said = offer
            await asyncio.sleep(OFFER_SECONDS)

    async def _tail(self, socket: ClientConnection) -> None:
        """Send the logs that are read, as they change."""
        while True:
            for slot, sent in list(self._logs.items()):
                text = self._program.log_of(slot)
                if text is not None and text != sent and slot in self._logs:
                    self._logs[slot] = text
                    await self._send(socket, LogTail(*self._stamp(), slot, text))
            await asyncio.sleep(LOG_SECONDS)

    async def _send(self, socket: ClientConnection, frame: RunnerFrame) -> None:
        await socket.send(encode(frame))

    def _stamp(self) -> tuple[str, int, float]:
        """(boot, next sequence, time)."""
        self._seq += 1
        return self._boot, self._seq, time.time()


def pause_seconds(attempt: int, *, longest: float = LONGEST_PAUSE) -> float:
    """Pause after the `attempt`th (1..) failure, with jitter down to half."""
    first = longest if longest > LONGEST_PAUSE else FIRST_PAUSE
    return float(min(first * 2 ** min(attempt - 1, 16), longest) * random.uniform(0.5, 1))  # noqa: S311 - no secret
