"""What runs on this machine: makes it what the server wants, and says what it is.

Used by `runner.session`, on one event loop. Invariants: what earlier programs left is found before the first report; an
id is started once, so one that has ended is reported until the server does not list it any more; a slot that is not
wanted is stopped, whoever started it; without a server everything goes on as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from runner.protocol import (
    LOG_CHARACTERS,
    MOST_SLOTS,
    MOST_SOURCES,
    SOURCE_CHARACTERS,
    Desired,
    DesiredSlot,
    SlotId,
    SlotReport,
)
from runner.runtimes import Place, Runtime
from runner.slot_folder import SlotFolder, folders
from runner.slot_lifecycle import Life

STOP_SECONDS: Final = 30.0
"""For slots that end with the runner."""

log = structlog.get_logger(__name__)


class StateTaken(Exception):
    """Another runner uses the folder."""


class NoPort(Exception):
    """Every port of the range is taken."""


@dataclass(slots=True)
class State:
    """The runner's folder. `instance`: random, made with the folder."""

    root: Path
    instance: str
    _lock: int

    @classmethod
    def open(cls, root: Path) -> State:
        """Take the folder, made where it is missing. Raises StateTaken and OSError."""
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(root / "runner.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StateTaken(f"another runner uses {root}") from None
        name = root / "instance"
        if not name.exists():
            part = root / "instance.part"
            part.write_text(secrets.token_hex(16), encoding="ascii")
            part.replace(name)
        return cls(root.resolve(), name.read_text(encoding="ascii").strip(), lock)

    @property
    def slots(self) -> Path:
        """The folder of slots."""
        return self.root / "slots"

    def close(self) -> None:
        """Let the folder go."""
        os.close(self._lock)


class Ports:
    """Ports of a range, one after the other, so that one that was let go is not taken again at once."""

    def __init__(self, host: str, first: int, last: int) -> None:
        self._host = host
        self._ports = range(first, last + 1)
        self._next = secrets.randbelow(len(self._ports))

    def take(self, used: set[int]) -> int:
        """A port that nobody listens on. Raises NoPort."""
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            if port not in used and _is_free(self._host, port):
                return port
        raise NoPort(f"no port of {self._ports[0]}-{self._ports[-1]} is free")


class Program:
    """The slots of this machine."""

    def __init__(
        self,
        state: State,
        runtimes: Mapping[str, Runtime],
        ports: Ports,
        *,
        host: str,
        listen: str = "",
        end_slots: bool = False,
    ) -> None:
        """`host`: where slots are reached; `listen`: where they listen, where that differs; `end_slots`: with `close`,
        and whenever this process ends.
        """
        self.state = state
        self.changed = asyncio.Event()
        """Set when `reports` says something new."""
        self._runtimes = dict(runtimes)
        self._ports = ports
        self._host = host
        self._listen = listen or host
        self._end_slots = end_slots
        self._lives: dict[SlotId, Life] = {}
        self._unknown: dict[SlotId, SlotReport] = {}
        """Slots that never had a folder: told to stop, or impossible to begin."""
        self._wanted: frozenset[SlotId] | None = None

    def begin(self) -> None:
        """Find the slots that run already."""
        for slot_id, folder in folders(self.state.slots).items():
            log.info("slot.found", slot=slot_id, running=folder.running, port=folder.port)
            self._begin(folder, found=True)

    def apply(self, desired: Desired) -> None:
        """Make it so: start, stop and forget."""
        self._wanted = frozenset(slot.id for slot in desired.slots)
        self._forget()  # first: what has ended counts among the slots that a runner may have
        for slot in desired.slots:
            life = self._lives.get(slot.id)
            if life is None:
                self._want(slot)
            elif not slot.run:
                life.stop()
        for slot_id, life in list(self._lives.items()):
            if slot_id not in self._wanted:
                life.stop(reason="the server does not know it any more")
        self._forget()

    def reports(self) -> list[SlotReport]:
        """Every slot, as it is now."""
        return [life.report() for life in self._lives.values()] + list(self._unknown.values())

    def offer(self) -> tuple[list[str], list[str]]:
        """(runtimes, sources on disk). Reads the disk."""
        found = {source for runtime in self._runtimes.values() for source in runtime.sources()}
        known = sorted(source for source in found if source.isprintable() and 0 < len(source) <= SOURCE_CHARACTERS)
        return sorted(self._runtimes), known[:MOST_SOURCES]

    def log_of(self, slot_id: SlotId) -> str | None:
        """The end of a slot's log; None where there is none."""
        life = self._lives.get(slot_id)
        return None if life is None else life.folder.tail(LOG_CHARACTERS)

    async def close(self) -> None:
        """Leave the slots running, or end them."""
        if self._end_slots:
            for life in self._lives.values():
                life.stop(reason="the runner ends")
            await self._until_over()
        for life in self._lives.values():
            life.leave()
        await asyncio.sleep(0)

    async def _until_over(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while not all(life.over for life in self._lives.values()):
                    self.changed.clear()
                    await self.changed.wait()

    def _want(self, slot: DesiredSlot) -> None:
        """A slot that is not here: start it, or say that it is not."""
        if not slot.run:
            self._unknown[slot.id] = SlotReport(id=slot.id, state="stopped")
        elif slot.id not in self._unknown:
            try:
                self._begin(self._folder(slot), found=False)
            except (OSError, NoPort) as error:
                self._unknown[slot.id] = SlotReport(id=slot.id, state="failed", reason=str(error)[:200])
        self.changed.set()

    def _folder(self, slot: DesiredSlot) -> SlotFolder:
        """A folder for a slot to be started. Raises NoPort and OSError."""
        if len(self._lives) >= MOST_SLOTS:
            raise NoPort(f"a runner has {MOST_SLOTS} slots at most")
        port = self._ports.take({life.folder.port for life in self._lives.values() if not life.over})
        return SlotFolder.create(self.state.slots, slot, port=port)

    def _begin(self, folder: SlotFolder, *, found: bool) -> None:
        place = Place(host=self._host, port=folder.port, folder=folder.path, listen=self._listen)
        runtime = self._runtimes.get(folder.slot.runtime)
        life = self._lives[folder.slot.id] = Life(folder, runtime, place, changed=self._on_change, found=found)
        life.begin(end_with_runner=self._end_slots)

    def _on_change(self) -> None:
        self.changed.set()
        self._forget()

    def _forget(self) -> None:
        """Delete what has ended and is not listed any more."""
        if self._wanted is None:
            return
        gone: Sequence[SlotId] = [key for key, one in self._lives.items() if one.over and key not in self._wanted]
        for slot_id in gone:
            self._lives.pop(slot_id).folder.remove()
        self._unknown = {key: one for key, one in self._unknown.items() if key in self._wanted}


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError:
            return False
    return True
