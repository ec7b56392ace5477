"""One slot from its start to its end: started, asked until it is ready, watched, stopped.

Used by `runner.program`. Invariants: a slot is started once, and one that is found again is watched from then on; it is
`ready` only while its runtime answers; `stopped` and `failed` say that no process of it is left; what does not end on
SIGTERM is killed after its grace time, and what has failed is stopped the same way.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

import httpx
import structlog

from runner.protocol import LINES_CHARACTERS, REASON_CHARACTERS, DesiredSlot, SlotIs, SlotReport, plain
from runner.runtimes import CannotStart, Place, Runtime
from runner.slot_folder import Ended, SlotFolder

ASK_SECONDS: Final = 0.1
"""Between two questions whether a slot is ready: at first, and half as often each second up to LONGEST_ASK_SECONDS."""
LONGEST_ASK_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 5.0
"""Between two questions to a slot that is ready."""
MISSED_MOST: Final = 3
"""Questions in a row without an answer, after which a slot that was ready has failed."""
KILL_AGAIN_SECONDS: Final = 5.0
REFUSED: Final = 400

log = structlog.get_logger(__name__)


class Failed(Exception):
    """The slot does not do what it is for; the text says why."""


class Life:
    """One slot. `changed` is called after each change of what `report` says."""

    def __init__(
        self, folder: SlotFolder, runtime: Runtime | None, place: Place, *, changed: Callable[[], None], found: bool
    ) -> None:
        """`found`: it was started by an earlier program; `runtime` None: this one does not have its runtime."""
        self.folder = folder
        self._runtime = runtime
        self._place = place
        self._changed = changed
        self._found = found
        self._state: SlotIs = "starting"
        self._reason = ""
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def slot(self) -> DesiredSlot:
        """What was asked for."""
        return self.folder.slot

    @property
    def over(self) -> bool:
        """Whether no process of it is left."""
        return self._state in {"stopped", "failed"}

    def begin(self, *, end_with_runner: bool = False) -> None:
        """Live, in a task of its own."""
        self._task = asyncio.create_task(self._live(end_with_runner=end_with_runner), name=f"slot {self.slot.id}")

    def stop(self, *, reason: str = "") -> None:
        """End it. May be called again; of a failed slot it makes a stopped one."""
        if self._state == "failed":
            self._set("stopped", self._reason)
        elif not self._stop.is_set():
            self._reason = reason or self._reason
        self._stop.set()

    def leave(self) -> None:
        """Stop watching it; its process goes on."""
        if self._task is not None:
            self._task.cancel()

    def report(self) -> SlotReport:
        """What it is now."""
        process = self.folder.process()
        return SlotReport(
            id=self.slot.id,
            state=self._state,
            address=self._place.address if self._state == "ready" else "",
            reason=plain(self._reason, REASON_CHARACTERS),
            lines=self.folder.tail(LINES_CHARACTERS) if self.over else "",
            pid=0 if process is None or self.over else process.pid,
        )

    async def _live(self, *, end_with_runner: bool) -> None:
        if not self._found and not self._starts(end_with_runner=end_with_runner):
            return
        ended = asyncio.create_task(self.folder.ended())
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({ended, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            failure = ""
            if serving.done() and (defect := serving.exception()) is not None:
                failure = str(defect) or type(defect).__name__
                if not isinstance(defect, Failed):
                    log.error("slot.watch_failed", slot=self.slot.id, exc_info=defect)
            serving.cancel()
            if not ended.done():
                self._set("stopping", self._reason or failure)
                await self._end(ended)
            self._over(await ended, failure)
        finally:
            for task in (ended, serving, stopping):
                task.cancel()
            await asyncio.gather(ended, serving, stopping, return_exceptions=True)

    def _starts(self, *, end_with_runner: bool) -> bool:
        """Whether it was started; one that was not is over."""
        try:
            self._start(end_with_runner=end_with_runner)
        except Exception as error:  # whatever it is, this slot has failed, and the runner's others go on
            if not isinstance(error, CannotStart | OSError):
                log.exception("slot.start_failed", slot=self.slot.id)
            reason = str(error) or type(error).__name__
            self.folder.note(reason)
            self._set("stopped" if self._stop.is_set() else "failed", reason)
            return False
        return True

    def _start(self, *, end_with_runner: bool) -> None:
        """Start the process. Raises CannotStart and OSError."""
        if self._runtime is None:
            raise CannotStart(f"this runner does not have the runtime {self.slot.runtime}")
        launch = self._runtime.launch(self.slot, self._place)
        self.folder.start(launch.command, launch.environment, end_with_runner=end_with_runner)
        log.info("slot.started", slot=self.slot.id, model=self.slot.model, address=self._place.address)

    async def _serve(self) -> None:
        """Wait until it is ready, then watch it. Raises Failed."""
        if self._runtime is None:
            raise Failed(f"this runner does not have the runtime {self.slot.runtime} any more")
        began = time.monotonic()
        async with httpx.AsyncClient(
            base_url=f"http://{self._place.address}", timeout=ANSWER_SECONDS, trust_env=False
        ) as client:
            try:
                async with asyncio.timeout(self.slot.start_seconds):
                    await self._until_ready(client, self._runtime)
            except TimeoutError:
                raise Failed(f"it was not ready within {self.slot.start_seconds:g} s") from None
            log.info("slot.ready", slot=self.slot.id, seconds=round(time.monotonic() - began, 1))
            self._set("ready", "")
            missed = 0
            while missed < MISSED_MOST:
                await asyncio.sleep(WATCH_SECONDS)
                missed = 0 if await _answers(client, self._runtime.health) else missed + 1
        raise Failed(f"it did not answer {MISSED_MOST} times in a row")

    async def _until_ready(self, client: httpx.AsyncClient, runtime: Runtime) -> None:
        """Ask until it answers, then take the steps of its runtime. Raises Failed."""
        pause = ASK_SECONDS
        while not await _answers(client, runtime.health):
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, LONGEST_ASK_SECONDS)
        for step in runtime.steps(self.slot):
            try:
                answer = await client.post(step.path, json=dict(step.body), timeout=None)
            except httpx.HTTPError as error:
                raise Failed(f"{step.path} failed: {error}") from error
            if answer.status_code >= REFUSED:
                raise Failed(f"{step.path} was answered {answer.status_code}: {answer.text}")

    async def _end(self, ended: asyncio.Task[Ended]) -> None:
        """SIGTERM, then SIGKILL until it has ended."""
        await self.folder.told(signal.SIGTERM)
        await asyncio.wait({ended}, timeout=self.slot.grace_seconds)
        if not ended.done():
            log.warning("slot.killed", slot=self.slot.id, after_seconds=self.slot.grace_seconds)
            killed = f"it ignored SIGTERM for {self.slot.grace_seconds:g} s and was killed"
            self._set("stopping", f"{self._reason}; {killed}" if self._reason else killed)
        while not ended.done():
            await self.folder.told(signal.SIGUSR1)
            await asyncio.wait({ended}, timeout=KILL_AGAIN_SECONDS)

    def _over(self, ended: Ended, failure: str) -> None:
        if self._stop.is_set():
            self._set("stopped", self._reason)
        else:
            self._set("failed", failure or _with_last_line(ended.text, self.folder.tail(LINES_CHARACTERS)))

    def _set(self, state: SlotIs, reason: str) -> None:
        if (state, reason) != (self._state, self._reason):
            log.info("slot.state", slot=self.slot.id, state=state, reason=reason[:200])
            self._state, self._reason = state, reason
            self._changed()


async def _answers(client: httpx.AsyncClient, path: str) -> bool:
    """By the status alone: the body may be large, or have no end."""
    try:
        async with client.stream("GET", path) as answer:
            return answer.status_code < REFUSED
    except httpx.HTTPError:
        return False


def _with_last_line(text: str, tail: str) -> str:
    """The text, and the last line of the log that says something."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return f"{text}: {lines[-1]}" if lines else text
