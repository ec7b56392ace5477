"""The order of a bench run, and where its results go.

Called by `tests.bench` (`make bench`) once Django is set up.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from tests.bench import (
    frames,
    gateway,
    growth,
    in_process,
    inference,
    network,
    over_http,
    queueing,
    reserving,
    slot_rounds,
    starts,
    words,
)
from tests.bench.agents.alone import measure_alone
from tests.bench.agents.measuring import measure_agents
from tests.bench.figures import Report
from tests.bench.machine import load, machine_told
from tests.servers import postgres, session

RESULTS = Path("bench-results")
VENDORS = ("sqlite", "postgresql")
PARTS = (
    *("engine", "queues", "growth", "slots", "frames", "filter", "words", "nodes"),
    *("bind", "network", "mutate", "list", "memory", "reserve", "slot-rounds", "gateway"),
    *("starts", "agent", "agents"),
)


def main() -> int:
    """Command line. Always 0 when everything could be measured: aims are told, not judged."""
    parser = argparse.ArgumentParser(prog="make bench", description="figures beside their floors")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these parts")
    parser.add_argument("--database", nargs="+", choices=VENDORS, default=VENDORS)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of product and floor in turns (default 30)")
    parser.add_argument("--nodes", type=int, default=5000, help="nodes of the large fleet, 8 GPUs each (default 5000)")
    parser.add_argument("--agents", type=int, default=5000, help="agents of the part `agents` (default 5000)")
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long they, and one `agent`, are measured, at least (default 60)"
    )
    given = parser.parse_args()
    began = datetime.now(UTC)
    report = Report(machine=machine_told())
    folder = session.enter() / "bench"
    _measure(
        report,
        folder,
        only=frozenset(given.only),
        vendors=given.database,
        rounds=given.rounds,
        nodes=given.nodes,
        seconds=min(given.seconds, 15),
    )
    if "starts" in given.only:
        starts.measure_starts(report, folder / "starts", rounds=min(given.rounds, 3))
    if "agent" in given.only:
        measure_alone(report, seconds=given.seconds)
    if "agents" in given.only:
        measure_agents(report, folder / "agents", agents=given.agents, seconds=given.seconds)
    report.machine["load_after"] = load()
    report.machine["seconds"] = (datetime.now(UTC) - began).total_seconds()
    print(f"\n{report.table()}\n")
    print(_told(report.machine))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{began:%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(orjson.dumps({"at": began, **report.stored}, option=orjson.OPT_INDENT_2))
    print(f"written to {path}")
    return 0


def _measure(
    report: Report,
    folder: Path,
    *,
    only: frozenset[str],
    vendors: list[str],
    rounds: int,
    nodes: int,
    seconds: float,
) -> None:
    if "engine" in only:
        in_process.measure_engine(report, rounds=min(rounds, 10))
    if "queues" in only:
        queueing.measure_queueing(report, rounds=min(rounds, 10))
    if "reserve" in only:
        reserving.measure_reserving(report, folder / "reserve", rounds=rounds)
    if "slots" in only:
        inference.measure_inference(report, rounds=min(rounds, 10))
    if "growth" in only:
        growth.measure_growth(report, rounds=min(rounds, 10))
    if "frames" in only:
        frames.measure_frames(report, folder / "frames", rounds=rounds, nodes=nodes)
    for vendor in vendors:
        if vendor == "postgresql" and (missing := missing_postgres()):
            report.machine["left_out"] = missing
            continue
        if only & {"filter", "nodes", "bind", "mutate", "list", "memory"}:
            _measure_web(report, folder / vendor, vendor, only, rounds, nodes)
        if "slot-rounds" in only:
            slot_rounds.measure_slot_rounds(report, folder, vendor, rounds=min(rounds, 10))
        if "network" in only and vendor == "postgresql":
            network.measure_network(report, folder / "network", rounds=rounds, nodes=nodes)
        if "gateway" in only:
            gateway.measure_gateway(report, folder, vendor, rounds=rounds, seconds=seconds)
        if "words" in only:
            with over_http.bench(vendor, folder / vendor / "words", nodes, nics=4) as at:
                words.measure_words(at, report, rounds=rounds, each=20)


def _measure_web(report: Report, folder: Path, vendor: str, only: frozenset[str], rounds: int, nodes: int) -> None:
    first = vendor == VENDORS[0]
    empty = {}
    if "memory" in only and first:
        with over_http.bench(vendor, folder / "empty", 0) as none:
            over_http.measure_mutate(none, Report({}, quiet=True), rounds=2, each=50)
            empty = none.memory()
    small = alone = None
    if "filter" in only:
        with over_http.bench(vendor, folder / "alone", nodes, held=False) as at:
            alone = over_http.measure_filter(at, Report({}, quiet=True), rounds=rounds, each=25, aims=False)
    if only & {"filter", "nodes", "bind", "mutate"}:
        with over_http.bench(vendor, folder / "small", 500) as at:
            if "mutate" in only and first:
                over_http.measure_mutate(at, report, rounds=rounds, each=50)
            if "nodes" in only:
                over_http.measure_nodes(at, report, rounds=min(rounds, 20), each=10)
            if "bind" in only:
                over_http.measure_bind(at, report, rounds=min(rounds, 20), each=25)
            if "filter" in only:
                small = over_http.measure_filter(at, report, rounds=rounds, each=25, aims=False)
    if only & {"filter", "memory", "list"}:
        with over_http.bench(vendor, folder / "large", nodes) as at:
            if only & {"filter", "memory"}:
                large = over_http.measure_filter(
                    at, report, rounds=rounds if "filter" in only else 2, each=50, aims=True
                )
                if alone is not None:
                    over_http.measure_crowd(alone, large, report, nodes=nodes)
                if small is not None:
                    over_http.measure_growth(small, large, report)
                    over_http.measure_commit(at, report, rounds=rounds, each=25)
            if empty:
                over_http.measure_memory(empty, at.memory(), vendor, report, devices=nodes * 8)
            if "list" in only:
                over_http.measure_list(at, report, rounds=min(rounds, 10), each=3)


def _told(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        f"load {machine['load_before']} before and {machine['load_after']} after, {machine['seconds']:.0f} s"
        + (f"\nwithout PostgreSQL: {machine['left_out']}" if "left_out" in machine else "")
    )


def missing_postgres() -> str:
    """Why PostgreSQL cannot be measured here, empty where it can."""
    try:
        postgres.server_url()
    except postgres.NoPostgres as missing:
        return str(missing)
    return ""
