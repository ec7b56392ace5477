"""A drawing of a node's wiring: GPUs in their PCIe switches and NUMA nodes, and the NVLinks between them.

Called by the node's page, whose template makes SVG of the numbers. Pure. Invariants: every GPU is drawn once; GPUs that
all have the same number of links to each other share one bar (an NVSwitch, or a bridge), since a line a pair would show
nothing. A node of more than `DRAWN_MOST` GPUs is not drawn: nobody could read it. `switch_rows` is the same as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from kube.device_types import GPU
from nodes.models import Device
from nodes.topology import normal_links

DRAWN_MOST = 32
"""Most GPUs of a node whose wiring is drawn, and whose link matrix is shown."""
BOX = 52
GAP = 14
BETWEEN = 30
TOP = 96
FABRIC = 26
"""Top of bars and arcs, above the GPUs."""


@dataclass(frozen=True, slots=True)
class Box:
    """One device; `x`, `y`: upper left corner."""

    device: Device
    x: int
    y: int

    @property
    def middle(self) -> int:
        """Its horizontal centre."""
        return self.x + BOX // 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A PCIe switch or NUMA node around its devices."""

    label: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Arc:
    """NVLinks between two GPUs: SVG path, number, line width."""

    path: str
    links: int
    weight: int
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """GPUs that are all linked alike; `drops`: x of the lines down to them."""

    x: int
    y: int
    width: int
    label: str
    drops: tuple[int, ...]


@dataclass(slots=True)
class Drawing:
    """The shapes and the size of a drawing."""

    width: int = 0
    height: int = 0
    boxes: list[Box] = field(default_factory=list)
    switches: list[Frame] = field(default_factory=list)
    numa: list[Frame] = field(default_factory=list)
    arcs: list[Arc] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @property
    def shown_width(self) -> int:
        """Width in pixels at which labels are legible."""
        return round(1.3 * self.width)

    @property
    def top(self) -> int:
        """Upper edge of the GPUs."""
        return TOP


def draw(devices: Iterable[Device], links: Iterable[Sequence[int]]) -> Drawing | None:
    """The drawing of one node; None without GPUs, or with more than DRAWN_MOST."""
    devices = list(devices)
    gpus = sorted((one for one in devices if one.type == GPU), key=lambda gpu: (gpu.numa, gpu.pcie, gpu.minor))
    if not gpus or len(gpus) > DRAWN_MOST:
        return None
    others = [one for one in devices if one.type != GPU]
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
    """Minors of the devices under one PCIe switch, as text: `0–7, 12`."""

    numa: int
    pcie: str
    gpus: str
    others: str


def switch_rows(devices: Iterable[Device]) -> list[SwitchRow]:
    """A node's devices by NUMA node and PCIe switch."""
    found: dict[tuple[int, str], dict[str, list[int]]] = {}
    for one in devices:
        found.setdefault((one.numa, one.pcie), {}).setdefault(one.type, []).append(one.minor)
    return [
        SwitchRow(
            numa,
            pcie,
            _ranges(by_type.get(GPU, [])),
            "; ".join(f"{kind} {_ranges(by_type[kind])}" for kind in sorted(by_type) if kind != GPU),
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
    """Frame switches and NUMA nodes; draw other devices below the GPUs of their switch."""
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
    drawing.height = bottom + 48
    for (numa, _), boxes in _runs(drawing.boxes, lambda one: (one.numa, "")).items():
        if numa >= 0:
            width, height = boxes[-1].x - boxes[0].x + BOX + 18, drawing.height - TOP + 6
            drawing.numa.append(Frame(f"NUMA {numa}", boxes[0].x - 9, TOP - 10, width, height))


def _runs(boxes: Sequence[Box], key: Callable[[Device], tuple[int, str]]) -> dict[tuple[int, str], list[Box]]:
    """GPUs by key."""
    found: dict[tuple[int, str], list[Box]] = {}
    for box in boxes:
        if box.device.type == GPU:
            found.setdefault(key(box.device), []).append(box)
    return found


def _fabric(drawing: Drawing, counts: Mapping[frozenset[int], int]) -> None:
    """Draw bars over islands whose GPUs are all linked alike, arcs for other links."""
    islands: dict[int, list[Box]] = {}
    for box in drawing.boxes:
        if box.device.type == GPU:
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
