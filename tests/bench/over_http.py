"""What is measured through the web process: filter, bind, mutate, lists, memory.

Called by `run`. Each measurement fills a database, starts `tests.bench.serving` on it, and asks.
Invariants: a pod is new in each request; holds are given back as they are made, so that the fleet stays
two fifths full and the picture in memory is patched before every answer, as in a busy cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from access.choices import TokenScope
from allocations import ledger
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.models import Allocation
from allocations.scheduling.binder import finish
from storage.clock import database_now
from tests.bench import bodies, fleets
from tests.bench.figures import Aim, Figure, Report, timed_figure
from tests.bench.serving import COMMIT, MEMORY
from tests.bench.wire import Wire, alternate
from tests.servers import redis, web

_numbers = itertools.count(1)
WAITING = 60
"""Holds that are kept before the oldest is given back."""


class Bench:
    """One web process on one filled database."""

    def __init__(self, app: web.LiveApp, database: str, node_count: int) -> None:
        self.app = app
        self.database = database
        self.names = fleets.names(node_count)
        self.lists = bodies.name_lists(self.names) if self.names else []
        machines = (TokenScope.EXTENDER, TokenScope.WEBHOOKS)
        self.wire = Wire(app.url, {f"/{one.value}/": app.token(scope=one) for one in machines} | {"/": app.token()})
        self.asked: deque[str] = deque()

    def pods(self, count: int) -> list[dict[str, Any]]:
        """Pods that were never seen before, in the mix of `bodies.MIX`."""
        names = self.fresh_names(count)
        return [bodies.pod(name, bodies.MIX[int(name[-6:]) % len(bodies.MIX)]) for name in names]

    def fresh_names(self, count: int) -> list[str]:
        """Names of pods that were never seen before."""
        return [f"train-{next(_numbers):06d}" for _ in range(count)]

    def give_back_one(self) -> None:
        """The oldest hold ends, as pods do in a cluster in balance."""
        if len(self.asked) > WAITING:
            give_back(self.asked.popleft())

    def give_back_all(self) -> None:
        """Every hold ends."""
        while self.asked:
            give_back(self.asked.popleft())

    def memory(self) -> dict[str, int]:
        """`rss` and `pss` in bytes."""
        found: dict[str, int] = orjson.loads(self.wire.timed(self.wire.request(MEMORY, method="GET"))[1])
        return found


@contextlib.contextmanager
def bench(vendor: str, folder: Path, node_count: int, *, held: bool = True, nics: int = 0) -> Iterator[Bench]:
    """A web process that knows `node_count` nodes with so many NICs; `held`: pods run on them."""
    with web.running(
        vendor=vendor, folder=folder, redis_url=redis.server_url("bench"), module="tests.bench.serving"
    ) as app:
        if node_count:
            fleets.register(node_count, held=held, nics=nics)
            fleets.analyze()
        try:
            yield Bench(app, vendor, node_count)
        except Exception as error:  # whatever it is: raised again with the log
            error.add_note("the web process said:\n" + "\n".join(app.log.read_text().splitlines()[-40:]))
            raise


@contextlib.contextmanager
def beside(at: Bench) -> Iterator[Bench]:
    """Another web process on the same database."""
    with web.on_database(at.app.database, redis.server_url("bench"), module="tests.bench.serving") as app:
        yield Bench(app, at.database, len(at.names))


def give_back(pod_uid: str) -> None:
    """End what a pod holds, in whatever state it is."""
    now = database_now()
    for allocation_id, state in list(
        Allocation.objects.filter(pod_uid=pod_uid, state__in=LIVE).values_list("id", "state")
    ):
        if state == State.HELD:
            ledger.drop_hold(
                allocation_id=allocation_id, outcome=State.RELEASED, reason="ended", now=now, actor="bench"
            )
            continue
        ledger.begin_release(
            allocation_id=allocation_id,
            sources=(State.RESERVED, State.BOUND),
            outcome=State.RELEASED,
            reason="ended",
            now=now,
            actor="bench",
        )
        finish(allocation_id, current_backends(), State.RELEASED, now=now, actor="bench")


def placed(answer: bytes) -> str:
    """The one node of an ExtenderFilterResult. Raises when the pod was refused."""
    result = orjson.loads(answer)
    chosen: list[str] = result["NodeNames"] or [
        item["metadata"]["name"] for item in (result["Nodes"] or {}).get("items", ())
    ]
    if result["Error"] or len(chosen) != 1:
        raise RuntimeError(f"a pod was not placed: {answer[:300]!r}")
    return chosen[0]


def measure_filter(at: Bench, report: Report, *, rounds: int, each: int, aims: bool) -> Figure:
    """filter with names, hold included."""

    def asked(number: int) -> Sequence[bytes]:
        found = []
        for place, pod in enumerate(at.pods(each)):
            at.asked.append(pod["metadata"]["uid"])
            found.append(bodies.names_body(pod, at.lists[(number + place) % len(at.lists)]))
        return found

    times = alternate(
        at.wire,
        path="/extender/filter",
        bodies=asked,
        rounds=rounds,
        check=placed,
        after=at.give_back_one,
    )
    at.give_back_all()
    return report.add(
        timed_figure(
            f"filter, names of {len(at.names):,} nodes × 8",
            times,
            database=at.database,
            most_ratio=3 if aims else None,
            most_spread=2 if aims else None,
        )
    )


def measure_commit(at: Bench, report: Report, *, rounds: int, each: int) -> None:
    """The filter's bodies answered by a constant after one committed row: the floor of any answer that lasts."""

    def asked(number: int) -> Sequence[bytes]:
        return [
            bodies.names_body(pod, at.lists[(number + place) % len(at.lists)])
            for place, pod in enumerate(at.pods(each))
        ]

    times = alternate(at.wire, path=f"{COMMIT}120", bodies=asked, rounds=rounds, check=lambda _: None)
    report.add(timed_figure("the floor with one row committed", times, database=at.database))


def measure_growth(small: Figure, large: Figure, report: Report) -> None:
    """How filter grows with the fleet."""
    growth = large.value / small.value
    exponent = math.log10(growth)
    report.add(
        Figure(
            name="filter, growth from 500 to 5,000 nodes",
            database=large.database,
            unit="×",
            value=growth,
            floor=(large.floor or 1) / (small.floor or 1),
            aims=[Aim("exponent ≤ 1", exponent, 1.0)],
        )
    )


def measure_crowd(alone: Figure, crowded: Figure, report: Report, *, nodes: int) -> None:
    """Filter with pods running against filter with none: nothing in it may grow with them."""
    report.add(
        Figure(
            name="filter, with pods running against none",
            database=crowded.database,
            unit="×",
            value=crowded.value / alone.value,
            floor=(crowded.floor or 1) / (alone.floor or 1),
            note=f"{fleets.running(nodes):,} pods",
        )
    )


def measure_nodes(at: Bench, report: Report, *, rounds: int, each: int) -> None:
    """filter with whole Node objects."""
    nodes = bodies.node_list(at.names)

    def asked(_: int) -> Sequence[bytes]:
        pods = at.pods(each)
        at.asked.extend(pod["metadata"]["uid"] for pod in pods)
        return [bodies.nodes_body(pod, nodes) for pod in pods]

    times = alternate(
        at.wire, path="/extender/filter", bodies=asked, rounds=rounds, check=placed, after=at.give_back_one
    )
    at.give_back_all()
    name = f"filter, {len(at.names):,} whole Nodes ({len(nodes) / 1e6:.1f} MB)"
    report.add(timed_figure(name, times, database=at.database))


def measure_bind(at: Bench, report: Report, *, rounds: int, each: int) -> None:
    """bind of pods that hold, embedded leases."""

    def asked(number: int) -> Sequence[bytes]:
        found = []
        for place, pod in enumerate(at.pods(each)):
            question = bodies.names_body(pod, at.lists[(number + place) % len(at.lists)])
            node = placed(at.wire.timed(at.wire.request("/extender/filter", question))[1])
            at.asked.append(pod["metadata"]["uid"])
            found.append(bodies.bind_body(pod, node))
        return found

    def check(answer: bytes) -> None:
        if orjson.loads(answer)["Error"]:
            raise RuntimeError(f"bind failed: {answer!r}")

    times = alternate(at.wire, path="/extender/bind", bodies=asked, rounds=rounds, check=check, after=at.give_back_one)
    at.give_back_all()
    report.add(timed_figure("bind, embedded leases", times, database=at.database))


def measure_mutate(at: Bench, report: Report, *, rounds: int, each: int) -> None:
    """The mutating webhook."""

    def check(answer: bytes) -> None:
        if b'"patch"' not in answer:
            raise RuntimeError(f"no patch: {answer[:300]!r}")

    times = alternate(
        at.wire,
        path="/webhooks/pods/mutate",
        bodies=lambda _: [bodies.review_body(pod) for pod in at.pods(each)],
        rounds=rounds,
        check=check,
    )
    report.add(timed_figure("webhook mutate", times, most_ratio=1.5))


def measure_list(at: Bench, report: Report, *, rounds: int, each: int) -> None:
    """A page of 1,000 allocations over REST."""

    def check(answer: bytes) -> None:
        if len(orjson.loads(answer)["results"]) != 1000:
            raise RuntimeError(f"not a full page: {answer[:300]!r}")

    times = alternate(
        at.wire,
        path="/api/v1/allocations/?page_size=1000",
        method="GET",
        bodies=lambda _: [b""] * each,
        rounds=rounds,
        check=check,
    )
    report.add(timed_figure("REST, 1,000 allocations", times, database=at.database))


def measure_memory(empty: dict[str, int], full: dict[str, int], database: str, report: Report, devices: int) -> None:
    """One web process after its work, beside one that knows no device."""
    for kind in ("pss", "rss"):
        report.add(
            Figure(
                name=f"memory of a web process, {devices:,} devices ({kind})",
                database=database,
                unit="MB",
                value=full[kind] / 1e6,
                floor=empty[kind] / 1e6,
                note=f"{(full[kind] - empty[kind]) / devices:,.0f} bytes a device",
            )
        )
