"""The simulated runtime, `runner.simulated`: for trying gpuplane and for tests, without a GPU or a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner import simulated
from runner.protocol import DesiredSlot
from runner.runtimes import Launch, Place, Step, base_environment

PROGRAM: Final = Path(simulated.__file__)


@dataclass(frozen=True, slots=True)
class Simulated:
    """`memory`: the folder that stands for the memory of this machine's GPUs; `on_disk`: sources that it has."""

    memory: Path
    on_disk: tuple[str, ...] = ()
    name: str = "simulated"
    health: str = "/health"

    def sources(self) -> list[str]:
        """As it was told."""
        return list(self.on_disk)

    def steps(self, slot: DesiredSlot) -> tuple[Step, ...]:
        """None."""
        del slot
        return ()

    def launch(self, slot: DesiredSlot, place: Place) -> Launch:
        """By its arguments."""
        gpus = [f"--gpu={gpu.uuid}:{gpu.memory}:{gpu.size}" for gpu in slot.gpus]
        arguments = [
            *slot.args,
            *(f"--model={slot.model}", f"--lora={slot.lora}", f"--parallel={slot.parallel}"),
            *(f"--host={place.listen}", f"--port={place.port}", f"--memory={self.memory}"),
            *gpus,
        ]
        return Launch(
            command=(sys.executable, "-SE", str(PROGRAM), *arguments),
            environment=base_environment(),
        )
