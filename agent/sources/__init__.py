"""Where an agent's figures come from: the driver and sysfs, a simulated machine, or a recording.

Called by `agent.program` from worker threads, one call at a time. Kept true: what a source does not know is None, never 0; a device that
cannot be read hides no other; only `SourceAway` says that nothing at all can be read now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from agent.protocol import BOUNDS, DeviceDetails

Column = list[int | float | None]
"""One value a GPU, by minor."""

FALLEN: Final = "fallen off the bus"
"""What is wrong with a GPU that is there no more."""
UNANSWERING: Final = "the GPU does not answer"
"""What is wrong with one that is there, and fails whatever it is asked."""


class SourceAway(Exception):
    """Nothing can be read now; the text says why. Asked again, a source tries anew."""


class BadSource(Exception):
    """The name of a source cannot be understood; the text says what can."""


class DeviceFacts(msgspec.Struct, frozen=True):
    """One device as it is built. Memory in bytes; `numa` -1 and `pcie` empty where unknown; minors are unique per type.

    `busid`: its PCI address as Linux writes it. `mig`: the GPU is in MIG mode. A MIG instance has its GPU's UUID as
    `parent`, and a profile (`1g.10gb`).
    """

    minor: int
    uuid: str
    model: str = ""
    memory: int = 0
    numa: int = -1
    pcie: str = ""
    type: str = "gpu"
    busid: str = ""
    mig: bool = False
    parent: str = ""
    profile: str = ""


class Machine(msgspec.Struct, frozen=True):
    """The devices by type and minor, and NVLinks: (minor, minor, how many between them), the lower minor first.

    `types`: those of which everything that is there is listed, be it nothing.
    """

    devices: tuple[DeviceFacts, ...] = ()
    links: tuple[tuple[int, int, int], ...] = ()
    types: tuple[str, ...] = ("gpu",)

    @property
    def gpus(self) -> tuple[DeviceFacts, ...]:
        """GPUs by minor, without MIG instances: the order of samples."""
        return tuple(one for one in self.devices if one.type == "gpu" and not one.parent)


def by_type_and_minor(devices: Iterable[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """In the order of a Machine: GPUs first."""
    return tuple(sorted(devices, key=lambda one: (one.type != "gpu", one.type, one.minor)))


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment: columns of `agent.protocol.COLUMNS` that are known, and what is wrong, by UUID, with every device that is not named well.

    `details`: of each GPU, by minor; empty where the source knows none.
    """

    columns: Mapping[str, Column] = {}
    health: Mapping[str, str] = {}
    details: Sequence[DeviceDetails] = ()


class Source(Protocol):
    """What the program reads. Every call may block, and may raise SourceAway."""

    def machine(self) -> Machine:
        """What is there now."""

    def read(self, machine: Machine, /) -> Reading:
        """What these devices do now."""

    def close(self) -> None:
        """Let go of the driver; never raises."""


def open_source(name: str, *, node: str, sys: Path = Path("/sys")) -> Source:
    """The source of this name: `nvml`, `simulated:<machine>` or `recorded:<file>`. Raises BadSource.

    `node`: whose it is, for UUIDs that are made of its name; `sys`: the host's sysfs.
    """
    kind, _, rest = name.partition(":")
    if kind == "nvml" and not rest:
        from agent.sources.nics import WithNics
        from agent.sources.nvml import NvmlSource

        return WithNics(NvmlSource(sys=sys), sys=sys, node=node)
    if kind == "simulated":
        from agent.sources.simulated import MACHINES, SimulatedSource

        if rest in MACHINES:
            return SimulatedSource(rest, node=node)
        raise BadSource(f"simulated: is followed by one of {', '.join(sorted(MACHINES))}")
    if kind == "recorded" and rest:
        from agent.sources.recorded import RecordedSource

        return RecordedSource(Path(rest))
    raise BadSource("a source is nvml, simulated:<machine> or recorded:<file>")


def error_columns(details: Sequence[DeviceDetails]) -> dict[str, Column]:
    """What of the details is a number a GPU: links down, errors. A column that no GPU knows is left out."""
    columns: dict[str, Column] = {"nvlinks_down": [], "nvlink_errors": [], "ecc_corrected": [], "ecc_uncorrected": []}
    for one in details:
        errors = [
            count
            for link in one.links
            for count in (link.replay_errors, link.recovery_errors, link.crc_errors)
            if count is not None
        ]
        columns["nvlinks_down"].append(sum(not link.is_up for link in one.links) if one.links else None)
        columns["nvlink_errors"].append(sum(errors) if errors else None)
        columns["ecc_corrected"].append(one.ecc_corrected)
        columns["ecc_uncorrected"].append(one.ecc_uncorrected)
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}


def within_bounds(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The same, where a value that no GPU can have (NaN, counters of a driver gone astray) is unknown: it would end the session, or stand for true."""
    return {
        name: [value if value is not None and BOUNDS[name][0] <= value <= most(name) else None for value in column]
        for name, column in columns.items()
    }


def most(name: str) -> float:
    """The largest value of a column that is sent: of utilisations up to 110 the server makes 100."""
    return 110 if name == "utilisation_percent" else BOUNDS[name][1]
