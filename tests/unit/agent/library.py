"""A source on the library of tests/fakes/nvml, and a step of time."""

from __future__ import annotations

from pathlib import Path

from agent.sources import Machine, Reading
from agent.sources.nvml import NvmlSource
from tests.fakes.nvml_stub import Stub


class Look:
    """A source on the library, by the library's clock."""

    def __init__(self, stub: Stub, sys: Path) -> None:
        self.stub = stub
        self.source = NvmlSource(sys=sys, clock=lambda: stub.clock)
        self.machine = Machine()

    def at_machine(self) -> Machine:
        """What is there now; a GPU that is not stays known, as in the program."""
        self.machine = self.source.machine()
        return self.machine

    def after(self, seconds: float) -> Reading:
        """What is read once so much time has gone by."""
        self.stub.say(f"advance {seconds * 1e6}")
        return self.source.read(self.machine)
