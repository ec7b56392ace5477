"""A figure is what was measured, beside its floor and its aim. The table and the JSON are made here.

Invariants: nothing is judged but by the floor of the same run; an aim that is missed is said, and fails nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.wire import Rounds


@dataclass(frozen=True)
class Aim:
    """What was hoped for: `value` shall be at most `most`."""

    text: str
    value: float
    most: float

    @property
    def met(self) -> bool:
        """Whether it came true in this run."""
        return self.value <= self.most


@dataclass(frozen=True)
class Figure:
    """One line of the table. Values in `unit`; `noise`: half the spread between the rounds' medians, as a fraction."""

    name: str
    database: str
    unit: str
    value: float
    p99: float | None = None
    floor: float | None = None
    floor_p99: float | None = None
    noise: float | None = None
    samples: int = 1
    aims: Sequence[Aim] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Value over floor."""
        return self.value / self.floor if self.floor else None

    @property
    def stored(self) -> dict[str, Any]:
        """For the JSON."""
        return {**asdict(self), "ratio": self.ratio, "aims": [{**asdict(aim), "met": aim.met} for aim in self.aims]}


@dataclass
class Report:
    """All figures of a run."""

    machine: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    quiet: bool = False

    def add(self, figure: Figure) -> Figure:
        """Keep and show one."""
        self.figures.append(figure)
        if not self.quiet:
            of = "" if figure.ratio is None else f" ({figure.ratio:.2f} × floor)"
            print(f"  {figure.name} [{figure.database or '-'}]: {_shown(figure.value, figure.unit)}{of}", flush=True)
        return figure

    @property
    def stored(self) -> dict[str, Any]:
        """For the JSON."""
        return {"machine": self.machine, "figures": [figure.stored for figure in self.figures]}

    def table(self) -> str:
        """Markdown, columns padded so that it reads in a terminal, too."""
        head = ("figure", "database", "median", "p99", "floor", "floor p99", "× floor", "noise", "aims")
        rows = [head, *(_row(figure) for figure in self.figures)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
        ]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)


def timed_figure(
    name: str,
    rounds: Rounds,
    *,
    database: str = "",
    most_ratio: float | None = None,
    most_spread: float | None = None,
    note: str = "",
) -> Figure:
    """The figure of times in nanoseconds, shown in milliseconds. Aims: median ÷ floor, p99 ÷ median."""
    product = sorted(took for one in rounds.product for took in one)
    floor = sorted(took for one in rounds.floor for took in one)
    value, least = statistics.median(product), statistics.median(floor)
    p99 = quantile(product, 0.99)
    aims = []
    if most_ratio is not None:
        aims.append(Aim(f"median ≤ {most_ratio:g} × floor", value / least, most_ratio))
    if most_spread is not None:
        aims.append(Aim(f"p99 ≤ {most_spread:g} × median", p99 / value, most_spread))
    return Figure(
        name=name,
        database=database,
        unit="ms",
        value=value / 1e6,
        p99=p99 / 1e6,
        floor=least / 1e6,
        floor_p99=quantile(floor, 0.99) / 1e6,
        noise=_noise(rounds),
        samples=len(product),
        aims=aims,
        note=note,
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that `part` of them do not exceed."""
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]


def _noise(rounds: Rounds) -> float:
    """Half the distance of the quartiles of the rounds' own ratios, as a fraction of their median."""
    ratios = [
        statistics.median(product) / least
        for product, floor in zip(rounds.product, rounds.floor, strict=True)
        if (least := statistics.median(floor))  # a browser's clock may be too coarse for the floor
    ]
    if len(ratios) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (high - low) / 2 / middle


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        figure.database,
        _shown(figure.value, figure.unit),
        _shown(figure.p99, figure.unit),
        _shown(figure.floor, figure.unit),
        _shown(figure.floor_p99, figure.unit),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.noise is None else f"±{figure.noise:.0%}",
        "; ".join(_told(figure.aims)) + (f" ({figure.note})" if figure.note else ""),
    )


def _told(aims: Iterable[Aim]) -> Iterable[str]:
    for aim in aims:
        yield f"{aim.text}: {aim.value:.2f} {'met' if aim.met else 'MISSED'}"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "ms":
        return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"
    return f"{value:,.1f} {unit}"
