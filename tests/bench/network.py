"""Filter with PostgreSQL at the other end of a network: a proxy delays each direction.

Called by `run`. The floor is as many bare round trips of `SELECT 1` through the same proxy as the filter made.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import psycopg

from tests.bench import bodies, fleets
from tests.bench.figures import Aim, Report, timed_figure
from tests.bench.over_http import Bench, placed
from tests.bench.wire import Rounds
from tests.database_proxy import DatabaseProxy
from tests.databases import connected
from tests.servers import redis, web

EACH_WAY_SECONDS = 0.001
FILTER_MOST_MS = 8.0
WARM = 40
"""Filters before the first that counts: by then every connection of the pool has prepared its statements."""


def measure_network(report: Report, folder: Path, *, rounds: int, nodes: int) -> None:
    """filter with names, hold included, 1 ms away from PostgreSQL."""
    with (
        connected("postgresql", folder) as database,
        DatabaseProxy(database.url, delay_seconds=EACH_WAY_SECONDS) as proxy,
        web.on_database(
            database,
            redis.server_url("bench"),
            settings={"GPUPLANE_DATABASE_URL": proxy.url},
            module="tests.bench.serving",
        ) as app,
        psycopg.connect(proxy.url, autocommit=True, prepare_threshold=0) as bare,
    ):
        fleets.register(nodes)
        fleets.analyze()
        at = Bench(app, "postgresql", nodes)
        trips: list[int] = []
        _filters(at, proxy, WARM, trips)
        times = Rounds()
        trips.clear()
        for _ in range(rounds):
            times.product.append(_filters(at, proxy, 15, trips))
            times.floor.append([_bare(bare, round(statistics.median(trips))) for _ in range(15)])
        at.give_back_all()
    named = f"filter, names of {nodes:,} nodes × 8, PostgreSQL 1 ms away"
    figure = timed_figure(named, times, database="postgresql")
    aim = Aim(f"median ≤ {FILTER_MOST_MS:g} ms", figure.value, FILTER_MOST_MS)
    note = f"{statistics.median(trips):g} round trips, {max(trips)} at most"
    report.add(replace(figure, aims=[aim], note=note))


def _filters(at: Bench, proxy: DatabaseProxy, count: int, trips: list[int]) -> list[int]:
    """Nanoseconds of each filter; `trips` gets its round trips."""
    found = []
    for place, pod in enumerate(at.pods(count)):
        at.asked.append(pod["metadata"]["uid"])
        request = at.wire.request("/extender/filter", bodies.names_body(pod, at.lists[place % len(at.lists)]))
        before = proxy.round_trips
        took, answer = at.wire.timed(request)
        trips.append(proxy.round_trips - before)
        placed(answer)
        found.append(took)
        at.give_back_one()
    return found


def _bare(bare: psycopg.Connection, trips: int) -> int:
    """Nanoseconds of so many round trips of a statement that does nothing."""
    began = time.perf_counter_ns()
    for _ in range(trips):
        bare.execute("SELECT 1").fetchone()
    return time.perf_counter_ns() - began
