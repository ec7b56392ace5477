"""Sources of an agent's data: the driver and sysfs, a simulated machine, or a recording.

Called by `agent.program` from worker threads, one call at a time. Invariants: an unknown value is None, never 0; a
device that cannot be read hides no other; `SourceAway` alone says that nothing can be read now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from agent.protocol import BOUNDS, DeviceDetails
from kube.device_types import GPU, type_order

Column = list[int | float | None]
"""One value a GPU, by minor."""

FALLEN: Final = "fallen off the bus"
"""Health of a GPU that is not listed any more."""
UNANSWERING: Final = "the GPU does not answer"
"""Health of a GPU of which every call fails."""


class SourceAway(Exception):
    """Nothing can be read now; the text says why. The next call tries anew."""


class BadSource(Exception):
    """An unknown source; the text lists the known ones."""


class DeviceFacts(msgspec.Struct, frozen=True):
    """One device. Memory in bytes; `numa` -1 and `pcie` empty where unknown; minors are unique per type.

    `busid`: PCI address as in Linux. `mig`: the GPU is in MIG mode. A MIG instance has its GPU's UUID as `parent`, and
    a profile (`1g.10gb`).
    """

    minor: int
    uuid: str
    model: str = ""
    memory: int = 0
    numa: int = -1
    pcie: str = ""
    type: str = GPU
    busid: str = ""
    mig: bool = False
    parent: str = ""
    profile: str = ""


class Machine(msgspec.Struct, frozen=True):
    """The devices by type and minor, and NVLinks: (lower minor, other minor, number).

    `types`: those whose devices are all listed.
    """

    devices: tuple[DeviceFacts, ...] = ()
    links: tuple[tuple[int, int, int], ...] = ()
    types: tuple[str, ...] = (GPU,)

    @property
    def gpus(self) -> tuple[DeviceFacts, ...]:
        """GPUs by minor without MIG instances: the order of samples."""
        return tuple(one for one in self.devices if one.type == GPU and not one.parent)


def by_type_and_minor(devices: Iterable[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """Devices in the order of a Machine, GPUs first."""
    return tuple(sorted(devices, key=lambda one: (type_order(one.type), one.minor)))


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements of one moment: known columns of `agent.protocol.COLUMNS`, what is wrong with unhealthy devices by
    UUID, and details of each GPU by minor; empty where the source has none.
    """

    columns: Mapping[str, Column] = {}
    health: Mapping[str, str] = {}
    details: Sequence[DeviceDetails] = ()


class Source(Protocol):
    """A source. Every call may block, and raise SourceAway."""

    def machine(self) -> Machine:
        """List the devices."""

    def read(self, machine: Machine, /) -> Reading:
        """Measure these devices."""

    def close(self) -> None:
        """Release the driver; raises nothing."""


def open_source(name: str, *, node: str, sys: Path = Path("/sys")) -> Source:
    """The source `nvml`, `simulated:<machine>` or `recorded:<file>`. Raises BadSource.

    `node`: name from which UUIDs may be derived; `sys`: the host's sysfs.
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
    """The columns that come from details: links down, errors; without columns that no GPU knows."""
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
    """The columns, with None for values out of bounds (NaN, wrong counters), which the server would not accept.

    A utilisation up to 110 is sent: the server makes it 100.
    """
    bounds = BOUNDS | {"utilisation_percent": (0, 110)}
    return {
        name: [value if value is not None and bounds[name][0] <= value <= bounds[name][1] else None for value in column]
        for name, column in columns.items()
    }
