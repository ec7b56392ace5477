"""A node's wiring as a drawing: GPUs under their PCIe switches and NUMA nodes, and the NVLinks between them.

Called by the node's page. Pure; plain numbers out, which a template makes SVG of. Kept true: every GPU stands once; GPUs that all have the same number
of links to each other hang on one bar (an NVSwitch, or a bridge over all), since a line for each pair would show nothing. A node of more than
`DRAWN_MOST` GPUs is not drawn: what it would show has the square of their number, and nobody could read it. `switch_rows` says the same as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from nodes.models import Device
from nodes.topology import normal_links

DRAWN_MOST = 32
"""GPUs of a node up to which its wiring is drawn, and its link matrix shown."""
BOX = 52
GAP = 14
BETWEEN = 30
TOP = 96
FABRIC = 26
"""Where bars and arcs end, above the GPUs."""


@dataclass(frozen=True, slots=True)
class Box:
    """One device. `x`, `y`: its upper left corner."""

    device: Device
    x: int
    y: int

    @property
    def middle(self) -> int:
        """Its centre, across."""
        return self.x + BOX // 2


@dataclass(frozen=True, slots=True)
class Frame:
    """What some devices share: a PCIe switch, or a NUMA node."""

    label: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Arc:
    """NVLinks between two GPUs: an SVG path, how many, and how thick to draw it."""

    path: str
    links: int
    weight: int
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """GPUs that are all linked alike."""

    x: int
    y: int
    width: int
    label: str
    drops: tuple[int, ...]
    """Where lines go down to GPUs."""


@dataclass(slots=True)
class Drawing:
    """Everything, and how large it is."""

    width: int = 0
    height: int = 0
    boxes: list[Box] = field(default_factory=list)
    switches: list[Frame] = field(default_factory=list)
    numa: list[Frame] = field(default_factory=list)
    arcs: list[Arc] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @property
    def shown_width(self) -> int:
        """Pixels at which labels read well."""
        return round(1.3 * self.width)

    @property
    def top(self) -> int:
        """Lower edge of what is above the GPUs."""
        return TOP


def draw(devices: Iterable[Device], links: Iterable[Sequence[int]]) -> Drawing | None:
    """The drawing of one node; None where it has no GPUs, or more than DRAWN_MOST."""
    devices = list(devices)
    gpus = sorted((one for one in devices if one.type == "gpu"), key=lambda gpu: (gpu.numa, gpu.pcie, gpu.minor))
    if not gpus or len(gpus) > DRAWN_MOST:
        return None
    others = [one for one in devices if one.type != "gpu"]
    drawing = Drawing()
    x = GAP + 6
    for place, gpu in enumerate(gpus):
        before = gpus[place - 1] if place else None
        if before is not None:
            x += BETWEEN if before.numa != gpu.numa else GAP + 8 if before.pcie != gpu.pcie else 6
        drawing.boxes.append(Box(gpu, x, TOP))
        x += BOX
    drawing.width = x + GAP + 6
    _frames(drawing, others)
    _fabric(drawing, {frozenset((low, high)): count for low, high, count in normal_links(links)})
    return drawing


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """What is under one PCIe switch, in words: `0–7, 12` of each type."""

    numa: int
    pcie: str
    gpus: str
    others: str


def switch_rows(devices: Iterable[Device]) -> list[SwitchRow]:
    """A node's devices by NUMA node and PCIe switch; what is known of neither stands in one row."""
    found: dict[tuple[int, str], dict[str, list[int]]] = {}
    for one in devices:
        found.setdefault((one.numa, one.pcie), {}).setdefault(one.type, []).append(one.minor)
    return [
        SwitchRow(
            numa,
            pcie,
            _ranges(by_type.get("gpu", [])),
            "; ".join(f"{kind} {_ranges(by_type[kind])}" for kind in sorted(by_type) if kind != "gpu"),
        )
        for (numa, pcie), by_type in sorted(found.items())
    ]


def _ranges(numbers: Iterable[int]) -> str:
    """`0–7, 12`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)


def _frames(drawing: Drawing, others: Sequence[Device]) -> None:
    """Switches and NUMA nodes around the GPUs; NICs and the like below the GPUs of their switch."""
    bottom = TOP + BOX
    for (_, pcie), boxes in _runs(drawing.boxes, lambda one: (one.numa, one.pcie)).items():
        beside = [one for one in others if pcie and one.pcie == pcie]
        for place, other in enumerate(beside[:4]):
            drawing.boxes.append(Box(other, boxes[0].x + place * (BOX + 6), TOP + BOX + 8))
            bottom = max(bottom, TOP + 2 * BOX + 8)
        if pcie:
            right = max(boxes[-1].x, boxes[0].x + (min(4, len(beside)) - 1) * (BOX + 6)) + BOX
            height = 2 * BOX + 8 if beside else BOX
            drawing.switches.append(Frame(pcie, boxes[0].x - 4, TOP - 4, right - boxes[0].x + 8, height + 22))
    for (numa, _), boxes in _runs(drawing.boxes, lambda one: (one.numa, "")).items():
        if numa >= 0:
            drawing.numa.append(Frame(f"NUMA {numa}", boxes[0].x - 9, TOP - 10, boxes[-1].x - boxes[0].x + BOX + 18, 0))
    drawing.height = bottom + 48
    drawing.numa = [
        Frame(frame.label, frame.x, frame.y, frame.width, drawing.height - frame.y - 4) for frame in drawing.numa
    ]


def _runs(boxes: Sequence[Box], key: Callable[[Device], tuple[int, str]]) -> dict[tuple[int, str], list[Box]]:
    """GPUs that stand together by key."""
    found: dict[tuple[int, str], list[Box]] = {}
    for box in boxes:
        if box.device.type == "gpu":
            found.setdefault(key(box.device), []).append(box)
    return found


def _fabric(drawing: Drawing, counts: Mapping[frozenset[int], int]) -> None:
    """Bars over islands that are linked alike, arcs for the rest."""
    islands: dict[int, list[Box]] = {}
    for box in drawing.boxes:
        if box.device.type == "gpu":
            islands.setdefault(box.device.island, []).append(box)
    for island in sorted(islands):
        boxes = islands[island]
        pairs = {
            (one, other): counts.get(frozenset((one.device.minor, other.device.minor)), 0)
            for one, other in combinations(boxes, 2)
        }
        linked = {pair: count for pair, count in pairs.items() if count}
        if len(boxes) > 2 and len(linked) == len(pairs) and len(set(linked.values())) == 1:
            (count,) = set(linked.values())
            label = f"NVLink, {count} links between every two"
            drawing.bars.append(
                Bar(boxes[0].x, FABRIC + 24, boxes[-1].x + BOX - boxes[0].x, label, tuple(box.middle for box in boxes))
            )
            continue
        most = max(linked.values(), default=1)
        for (one, other), count in sorted(linked.items(), key=lambda item: item[0][1].x - item[0][0].x):
            left, right = sorted((one.middle, other.middle))
            rise = min(TOP - 12, 16 + (right - left) // 7)
            path = f"M{left} {TOP} C{left} {TOP - rise} {right} {TOP - rise} {right} {TOP}"
            words = f"GPU {one.device.minor} – GPU {other.device.minor}: {count} NVLink{'s' if count > 1 else ''}"
            drawing.arcs.append(Arc(path, count, max(1, round(3 * count / most)), words))
