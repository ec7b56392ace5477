"""The tables and the JSON of a run. Aims are hopes: a missed one is said, and fails nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from tests.bench.cluster.burst import Burst
from tests.bench.cluster.measuring import WRITES

AIMS = {"floor": 0.85, "stock": 0.55, "dra": 2.0}
"""gpuplane's pods a second are at least so many times theirs."""
OF_GPUPLANE = ("sqlite", "postgresql")
CLUSTER = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "kwok")
Table = list[Sequence[str]]


def summary(bursts: Sequence[Burst], titles: Mapping[str, str], sizes: Sequence[str]) -> str:
    """All tables, as markdown."""
    parts = []
    for size in sizes:
        found = [one for one in bursts if one.size == size]
        if not found:
            continue
        names = [name for name in titles if any(one.contender == name for one in found)]
        parts += [f"### {_told(found[0])}", "", markdown(_rates(found, names, titles)), ""]
        parts += [
            markdown(_latencies(found, names)),
            "",
            markdown(_spread(found, names, "CPU ms a pod", lambda one: one.cpu, 1e3)),
            "",
        ]
        parts += [markdown(_spread(found, names, "API writes a pod", _writes, 1)), ""]
    return "\n".join(parts)


def markdown(rows: Table) -> str:
    """Columns padded so that it reads in a terminal, too."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def median_rate(bursts: Sequence[Burst], contender: str) -> float | None:
    """Pods a second, None where there was no round."""
    rates = [one.rate for one in bursts if one.contender == contender]
    return statistics.median(rates) if rates else None


def _told(one: Burst) -> str:
    return f"{one.size}: {one.pods:,} pods"


def _rates(found: Sequence[Burst], names: Sequence[str], titles: Mapping[str, str]) -> Table:
    base = {name: median_rate(found, name) for name in AIMS}
    rows: Table = [("contender", "pods/s", "rounds", *(f"÷ {name}" for name in AIMS), "aims")]
    for name in names:
        rate = median_rate(found, name) or 0.0
        rounds = ", ".join(f"{one.rate:.0f}" for one in found if one.contender == name)
        ratios = {other: rate / against for other, against in base.items() if against}
        aims = ""
        if name.startswith(OF_GPUPLANE):
            aims = "; ".join(
                f"≥ {aim:g} × {other}: {'met' if ratios[other] >= aim else 'MISSED'}"
                for other, aim in AIMS.items()
                if other in ratios
            )
        shown = [f"{ratios[other]:.2f}" if other in ratios else "" for other in AIMS]
        rows.append((titles[name], f"{rate:.0f}", rounds, *shown, aims))
    return rows


def _latencies(found: Sequence[Burst], names: Sequence[str]) -> Table:
    rows: Table = [("contender", "filter p50", "p99", "mean", "bind p50", "p99", "mean", "filters a pod")]
    for name in names:
        mine = [one for one in found if one.contender == name and one.times]
        if not mine:
            continue
        cells = [
            f"{statistics.median(one.times[verb][part] for one in mine if verb in one.times) * 1e3:.1f} ms"
            for verb in ("filter", "bind")
            for part in ("p50", "p99", "mean")
        ]
        asked = statistics.median(one.times["filter"]["count"] / one.pods for one in mine)
        rows.append((name, *cells, f"{asked:.2f}"))
    return rows if len(rows) > 1 else [*rows, ("–",) * 8]


def _writes(one: Burst) -> dict[str, float]:
    """Writes by what they write to. Node heartbeats, which no pod causes, are left out."""
    return {
        name: share
        for name, share in one.requests.items()
        if name.partition(" ")[0] in WRITES and name != "PUT leases" and share >= 0.005
    }


def _spread(
    found: Sequence[Burst],
    names: Sequence[str],
    title: str,
    of: Callable[[Burst], Mapping[str, float]],
    scale: float,
) -> Table:
    """A column for each thing, medians over the rounds."""
    seen: dict[str, None] = {}
    for one in found:
        seen.update(dict.fromkeys(of(one)))
    columns = [name for name in CLUSTER if name in seen] + sorted(name for name in seen if name not in CLUSTER)
    rows: Table = [(title, *columns, "all")]
    for name in names:
        mine = [of(one) for one in found if one.contender == name]
        if not mine:
            continue
        medians = [statistics.median(one.get(column, 0.0) for one in mine) * scale for column in columns]
        shown = [f"{amount:.2f}" if amount else "" for amount in medians]
        rows.append((name, *shown, f"{sum(medians):.2f}"))
    return rows
