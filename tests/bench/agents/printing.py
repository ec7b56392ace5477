"""What a run of `measuring` found, as figures beside their floors.

Called by `measuring`. Pure. Invariants: every figure's floor is from the same run; a browser's is the tick alone, which
by itself makes a sample wait half a second in the middle and nearly all of it at worst.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from nodes.history.ring import KEPT_SECONDS
from tests.bench.figures import Aim, Figure, Report, quantile, timed_figure
from tests.bench.wire import Rounds

OLDEST_MS = 2000.0
BLOCKED_MS = 50.0
MINUTE_MS = 3000.0
SHOWN_DELAYS = 8


@dataclass
class Run:
    """Filled in by `measuring`.

    `…_pulse`: as `serving.Pulse.told`; `…crowd`, `…ramp`: as `crowd.Crowd.told`; memory in bytes.
    """

    agents: int
    decode_us: float = 0.0
    floor_before: dict[str, int] = field(default_factory=dict)
    floor_after: dict[str, int] = field(default_factory=dict)
    floor_ramp: dict[str, Any] = field(default_factory=dict)
    floor_pulse: dict[str, Any] = field(default_factory=dict)
    floor_crowd: dict[str, Any] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    ramp: dict[str, Any] = field(default_factory=dict)
    pulse_before: dict[str, Any] = field(default_factory=dict)
    pulse: dict[str, Any] = field(default_factory=dict)
    crowd: dict[str, Any] = field(default_factory=dict)
    minute: dict[str, Any] = field(default_factory=dict)
    rest: Figure | None = None
    asked: Rounds = field(default_factory=Rounds)
    asked_in_minute: Rounds = field(default_factory=Rounds)
    asked_apart: Rounds = field(default_factory=Rounds)
    redis_cpu: float = 0.0
    redis_memory: int = 0
    ring_bytes: int = 0
    ring_seconds: float = 0.0
    samples_bytes: int = 0
    details_bytes: int = 0
    pack_ms: list[float] = field(default_factory=list)
    encode_ms: list[float] = field(default_factory=list)


def report_run(report: Report, run: Run) -> None:
    """All figures."""
    _report_ages(report, run)
    _report_web(report, run)
    _report_redis(report, run)
    _report_minute(report, run)
    _report_filter(report, run)


def _report_ages(report: Report, run: Run) -> None:
    """Both browsers are told of; they differ in the columns that they are sent."""
    for name, told in zip(("one measure", "all measures"), run.crowd["sights"], strict=True):
        tick = 1000 * told["gap_p50"]
        report.add(
            Figure(
                f"{run.agents:,} agents × 8 GPUs, age of a sample when a browser first shows it, {name}",
                "sqlite",
                "ms",
                1000 * told["age_p50"],
                p99=1000 * told["age_p99"],
                floor=tick / 2,
                floor_p99=0.99 * tick,
                samples=told["seen"],
                aims=[Aim(f"p99 ≤ {OLDEST_MS:,.0f} ms", 1000 * told["age_p99"], OLDEST_MS)],
                note=(
                    f"the floor is a tick; oldest {told['age_most']:.2f} s; {told['frames']} frames of"
                    f" {told['bytes_a_frame'] / 1000:.0f} kB, at most {told['gap_most']:.2f} s apart"
                ),
            )
        )
    told = run.crowd["sights"][0]
    for name, key in (
        ("of that, until the picture is made", "wait"),
        ("of that, from picture to browser", "delivery"),
        ("age of everything on the screen when a frame comes", "screen"),
    ):
        report.add(
            Figure(name, "sqlite", "ms", 1000 * told[f"{key}_p50"], p99=1000 * told[f"{key}_p99"], samples=told["seen"])
        )


def _report_web(report: Report, run: Run) -> None:
    pulse, floor = run.pulse, run.floor_pulse
    sent = run.crowd["sent"] / pulse["seconds"]
    taken = (pulse["taken"] - run.pulse_before["taken"]) / pulse["seconds"]
    cpu, least = 1000 * pulse["cpu"] / pulse["seconds"], 1000 * floor["cpu"] / floor["seconds"]
    late = 1e3 * run.crowd["late_p99"]
    report.add(
        Figure(
            "samples a second, the floor is what was sent",
            "sqlite",
            "",
            taken,
            floor=sent,
            note=(
                f"{pulse['refused'] - run.pulse_before['refused']:.0f} refused, {run.crowd['lost']} connections lost;"
                f" the crowd used {1000 * run.crowd['cpu_seconds'] / pulse['seconds']:.0f} ms of CPU a second and was"
                f" at p99 {late:.0f} ms late"
            ),
        )
    )
    report.add(
        Figure(
            "CPU of the web process a second",
            "sqlite",
            "ms",
            cpu,
            floor=least,
            note=(
                f"the floor's sockets drop each frame; {1000 * cpu / run.agents:.0f} µs an agent, the floor"
                f" {1000 * least / run.agents:.0f}, decoding and keeping alone {run.decode_us:.0f}"
            ),
        )
    )
    for kind in ("pss", "rss"):
        report.add(
            Figure(
                f"memory of the web process an agent ({kind})",
                "sqlite",
                "kB",
                (run.after[kind] - run.before[kind]) / run.agents / 1000,
                floor=(run.floor_after[kind] - run.floor_before[kind]) / run.agents / 1000,
                note=f"{run.after[kind] / 1e6:.0f} MB in all",
            )
        )
    _report_loop(report, run)
    report.add(
        Figure(
            f"{run.agents:,} agents come at once, until all are acknowledged",
            "sqlite",
            "ms",
            1000 * run.ramp["ready"],
            floor=1000 * run.floor_ramp["ready"],
            note=f"{run.agents / run.ramp['ready']:,.0f} a second; the floor only accepts",
        )
    )


def _report_loop(report: Report, run: Run) -> None:
    """Whatever else runs on the machine keeps the process from its cores: a delay is its own doing as far as it used
    CPU time in it, in whatever thread.
    """
    late = sorted(1000 * one[0] for one in run.pulse["late"])
    least = sorted(1000 * one[0] for one in run.floor_pulse["late"])
    worst = sorted(run.pulse["late"], key=lambda one: -min(one[0], one[2]))[:SHOWN_DELAYS]
    told = ", ".join(f"{1000 * min(took, cpu):.0f} ({1000 * own:.0f})" for took, own, cpu in worst)
    ours = 1000 * min(worst[0][0], worst[0][2])
    report.add(
        Figure(
            "a timer's delay in the event loop",
            "sqlite",
            "ms",
            statistics.median(late),
            p99=quantile(late, 0.99),
            floor=statistics.median(least),
            floor_p99=quantile(least, 0.99),
            samples=len(late),
            aims=[Aim(f"its own doing at most {BLOCKED_MS:.0f} ms", ours, BLOCKED_MS)],
            note=(
                f"CPU ms of the process (of the loop itself) in the worst: {told}; longest of all {late[-1]:.0f} ms,"
                f" the floor's {least[-1]:.0f}"
            ),
        )
    )


def _report_redis(report: Report, run: Run) -> None:
    a_node = run.ring_bytes / run.agents / max(run.ring_seconds, 1.0)
    report.add(Figure("CPU of Redis a second", "sqlite", "ms", 1000 * run.redis_cpu))
    report.add(
        Figure(
            "memory of Redis",
            "sqlite",
            "MB",
            run.redis_memory / 1e6,
            note=(
                f"newest samples {run.samples_bytes / 1e6:.0f}, details {run.details_bytes / 1e6:.0f}, ring"
                f" {run.ring_bytes / 1e6:.0f} with {run.ring_seconds:.0f} s in it"
            ),
        )
    )
    report.add(
        Figure(
            "memory of the ring a node, full",
            "sqlite",
            "kB",
            a_node * KEPT_SECONDS / 1000,
            note=f"{a_node:.0f} bytes a second, for {KEPT_SECONDS} s",
        )
    )
    report.add(
        Figure(
            "ring.pack of a second's samples, in a thread",
            "",
            "ms",
            statistics.median(run.pack_ms),
            floor=statistics.median(run.encode_ms),
            note="the floor encodes each once",
        )
    )


def _report_minute(report: Report, run: Run) -> None:
    minute = run.minute
    report.add(
        Figure(
            "a minute rolled up, CPU of the worker",
            "sqlite",
            "ms",
            1000 * minute["cpu"],
            floor=1000 * minute["floor"],
            aims=[Aim(f"at most {MINUTE_MS:,.0f} ms", 1000 * minute["cpu"], MINUTE_MS)],
            note=(
                "the floor reads and unpacks the same entries; "
                f"{minute['nodes']:,} nodes, {minute['bytes'] / max(minute['nodes'], 1):.0f} bytes each,"
                f" {minute['seconds']:.1f} s from beginning to end"
            ),
        )
    )
    holds = minute["holds"]
    report.add(
        Figure(
            "of that, SQLite's write lock held",
            "sqlite",
            "ms",
            1000 * statistics.median(holds),
            p99=1000 * quantile(holds, 0.99),
            samples=len(holds),
            note=f"longest {1000 * holds[-1]:.0f} ms, {len(holds)} times, {1000 * sum(holds):.0f} ms in all",
        )
    )


def _report_filter(report: Report, run: Run) -> None:
    rest = "" if run.rest is None else f"without agents {run.rest.value:.1f} ms, p99 {run.rest.p99:.1f}"
    for name, rounds in (
        ("beside the agents", run.asked),
        ("while a minute is rolled up", run.asked_in_minute),
        ("of a process that has no agents, beside theirs", run.asked_apart),
    ):
        if rounds.product:
            report.add(
                timed_figure(f"filter, names of {run.agents:,} nodes × 8, {name}", rounds, database="sqlite", note=rest)
            )
