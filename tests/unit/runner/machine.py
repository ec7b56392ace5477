"""A machine with a runner's program and the simulated runtime: real processes, make-believe GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from runner import slot_folder
from runner.program import Ports, Program, State
from runner.protocol import Desired, DesiredSlot, Gpu, SlotReport
from runner.runtimes.simulated import Simulated

SOON = 30.0
SIZE = 100


def wanted(
    slot_id: str = "s1",
    *args: str,
    run: bool = True,
    memory: int = 10,
    parallel: int = 1,
    start_seconds: float = SOON,
    grace_seconds: float = 10,
) -> DesiredSlot:
    """A slot of the simulated runtime that is ready at once."""
    return DesiredSlot(
        id=slot_id,
        run=run,
        model="m",
        runtime="simulated",
        gpus=[Gpu(0, "GPU-0", memory, SIZE)],
        args=["--start-seconds=0", "--first-token-seconds=0", *args],
        parallel=parallel,
        start_seconds=start_seconds,
        grace_seconds=grace_seconds,
    )


@dataclass
class Machine:
    """`program()` starts a runner's program; the folder outlives it."""

    folder: Path
    host: str = f"127.77.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
    """An address of this test process alone, so that no two take one port."""

    @contextlib.asynccontextmanager
    async def program(self, *, end_slots: bool = False) -> AsyncIterator[Program]:
        """The program, from its start to its end; slots go on, where they do not end with it."""
        state = State.open(self.folder / "state")
        runtimes = {"simulated": Simulated(self.folder / "memory")}
        ports = Ports(self.host, 21000, 21999)
        program = Program(state, runtimes, ports, host=self.host, end_slots=end_slots)
        program.begin()
        try:
            yield program
        finally:
            await program.close()
            state.close()

    def slot_folder(self, slot_id: str = "s1") -> Path:
        return self.folder / "state" / "slots" / slot_id

    def pids(self, slot_id: str = "s1") -> list[int]:
        """Processes of a slot, its keeper included."""
        return slot_folder.marked(self.slot_folder(slot_id))

    def kill_all(self) -> None:
        """End whatever a test left."""
        slots = self.folder / "state" / "slots"
        for path in slots.iterdir() if slots.is_dir() else ():
            while slot_folder.kill_marked(path):
                pass


async def until(program: Program, true: Callable[[dict[str, SlotReport]], object]) -> dict[str, SlotReport]:
    """Wait until the reports, by slot, are so; and the reports."""
    async with asyncio.timeout(SOON):
        while True:
            program.changed.clear()
            reports = {one.id: one for one in program.reports()}
            if true(reports):
                return reports
            await program.changed.wait()


async def state(program: Program, want: str, slot_id: str = "s1") -> SlotReport:
    """Wait until the slot is in this state."""
    reports = await until(program, lambda found: slot_id in found and found[slot_id].state == want)
    return reports[slot_id]


async def ask(address: str, **body: object) -> httpx.Response:
    """A chat request to a slot."""
    async with httpx.AsyncClient(trust_env=False, timeout=SOON) as client:
        return await client.post(f"http://{address}/v1/chat/completions", json={"model": "m", "messages": [], **body})


def one(*slots: DesiredSlot) -> Desired:
    return Desired(list(slots))
