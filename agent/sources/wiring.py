"""Wiring of a machine: NVLinks between GPUs as each GPU reports them, PCIe switches and NUMA nodes from sysfs.

Called by the NVML source. Invariants: where the two ends of a pair count differently the smaller number is right; GPUs
on NVSwitches are linked by as many links as the one with fewer has; what sysfs does not say is unknown.
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
"""PCI address in sysfs."""


SWITCH: Final = "switch"
"""Far end of a link to an NVSwitch."""


class LinkEnd(NamedTuple):
    """One NVLink of a GPU. `remote`: bus id of the far end, SWITCH, or empty: unknown.

    A link that does not answer (`answers` False) has the state of its last answer.
    """

    number: int
    is_up: bool
    remote: str
    answers: bool = True


class Seen(NamedTuple):
    """One GPU with its driver handle, bus id and NVLinks."""

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
        """Number of active links to a switch."""
        return sum(end.is_up and end.remote == SWITCH for end in self.ends)


def links_of(seen: Sequence[Seen]) -> tuple[tuple[int, int, int], ...]:
    """(lower minor, other minor, NVLinks between them), sorted."""
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
    """Far ends of a GPU's NVLinks, from a link matrix: UUIDs, or SWITCH where the GPU has fewer links (`own`)."""
    ends = [
        uuids[high if low == minor else low] for low, high, count in links if minor in {low, high} for _ in range(count)
    ]
    return ends if own is None or len(ends) <= own else [SWITCH] * own


def short(bus: str) -> str:
    """A bus id as sysfs writes it, with four digits for the domain (`0000:07:00.0`); NVML has eight."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def numa_of(sys: Path, bus: str) -> int:
    """The NUMA node of a PCI device, -1: unknown."""
    try:
        return int((sys / "bus" / "pci" / "devices" / short(bus) / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def switch_of(sys: Path, bus: str) -> str:
    """The upstream port of the device's PCIe switch, empty without one or if unknown.

    Devices nest in sysfs: root port / upstream port / downstream port / device, without a switch root port / device.
    """
    try:
        resolved = (sys / "bus" / "pci" / "devices" / short(bus)).resolve(strict=True)
    except OSError:
        return ""
    ports = [part for part in resolved.parts[:-1] if ADDRESS.fullmatch(part)]
    return ports[-2] if len(ports) >= 3 else ""
