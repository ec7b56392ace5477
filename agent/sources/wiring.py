"""How the devices of a machine are wired: NVLinks between GPUs from what each sees, PCIe switches and NUMA nodes from
sysfs.

Called by the NVML source. Kept true: a pair that both ends count differently has the smaller number; behind NVSwitches
every pair is linked by as many links as the one with fewer has; what sysfs does not say is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.sources import DeviceFacts

ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""Of a PCI device, as sysfs writes it."""


SWITCH: Final = "switch"
"""What is at the far end of a link to an NVSwitch."""


class LinkEnd(NamedTuple):
    """One NVLink of a GPU: `remote` is the bus id at its far end, SWITCH, or empty where nothing is known.

    A link that does not answer now (`answers` False) is as it was when it last did.
    """

    number: int
    is_up: bool
    remote: str
    answers: bool = True


class Seen(NamedTuple):
    """One GPU as the driver shows it."""

    facts: DeviceFacts
    handle: Any
    bus: str
    ends: Sequence[LinkEnd]

    @property
    def peers(self) -> list[str]:
        """Bus ids at the far ends of active links."""
        return [end.remote for end in self.ends if end.is_up and end.remote not in {"", SWITCH}]

    @property
    def switched(self) -> int:
        """How many active links end at a switch."""
        return sum(end.is_up and end.remote == SWITCH for end in self.ends)


def links_of(seen: Sequence[Seen]) -> tuple[tuple[int, int, int], ...]:
    """(minor, minor, NVLinks between them), the lower minor first, sorted."""
    counted = {one.facts.minor: Counter(map(short, one.peers)) for one in seen}
    found = []
    for one, other in combinations(sorted(seen, key=lambda gpu: gpu.facts.minor), 2):
        direct = min(counted[one.facts.minor][short(other.bus)], counted[other.facts.minor][short(one.bus)])
        links = direct + min(one.switched, other.switched)
        if links:
            found.append((one.facts.minor, other.facts.minor, links))
    return tuple(found)


def remotes_of(
    links: Iterable[tuple[int, int, int]], minor: int, *, uuids: Mapping[int, str], own: int | None = None
) -> list[str]:
    """What is at the far end of each NVLink of a GPU, from a link matrix: UUIDs, or SWITCH where the GPU has fewer
    links (`own`) than pairs count.
    """
    ends = [
        uuids[high if low == minor else low] for low, high, count in links if minor in {low, high} for _ in range(count)
    ]
    return ends if own is None or len(ends) <= own else [SWITCH] * own


def short(bus: str) -> str:
    """`00000000:07:00.0` and `0000:07:00.0` are the same: sysfs writes the domain with four digits where they do, NVML
    with eight.
    """
    domain, _, rest = bus.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def numa_of(sys: Path, bus: str) -> int:
    """The NUMA node of a PCI device, -1 where it is not known."""
    try:
        return int((sys / "bus" / "pci" / "devices" / short(bus) / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def switch_of(sys: Path, bus: str) -> str:
    """The upstream port of the PCIe switch that the device is under, empty where there is none or nothing is known.

    sysfs nests devices: root port / upstream port / downstream port / device, with a switch; root port / device,
    without.
    """
    try:
        resolved = (sys / "bus" / "pci" / "devices" / short(bus)).resolve(strict=True)
    except OSError:
        return ""
    ports = [part for part in resolved.parts[:-1] if ADDRESS.fullmatch(part)]
    return ports[-2] if len(ports) >= 3 else ""
