"""`python -m tests.bench.agents.minute`: one minute of history, rolled up as a worker does it, with its CPU time and
its hold on SQLite's write lock.

Started by `measuring` while the agents talk. Prints one line of JSON. Invariants: it is the product's own `roll_up`;
the minute before, which the crowd filled in part, is left out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec


class Holds:
    """How long each transaction of a connection of SQLite lasts, from having the lock to having committed."""

    def __init__(self, connection: Any) -> None:
        self.seconds: list[float] = []
        self.waited: list[float] = []
        self._began = 0.0
        connection._start_transaction_under_autocommit = self._timed(
            connection._start_transaction_under_autocommit, self._begun
        )
        connection._commit = self._timed(connection._commit, self._ended)
        connection.execute_wrappers.append(self._statement)

    def _begun(self, took: float) -> None:
        self.waited.append(took)
        self._began = time.perf_counter()

    def _ended(self, _: float) -> None:
        self.seconds.append(time.perf_counter() - self._began)

    @staticmethod
    def _timed(call: Callable[[], None], then: Callable[[float], None]) -> Callable[[], None]:
        def timed() -> None:
            began = time.perf_counter()
            call()
            then(time.perf_counter() - began)

        return timed

    def _statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        """A write outside a transaction is one of its own."""
        began = time.perf_counter()
        result = execute(sql, params, many, context)
        if not context["connection"].in_atomic_block and not sql.startswith("SELECT"):
            self.seconds.append(time.perf_counter() - began)
        return result


def main() -> int:
    """Command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    import django

    django.setup()
    from django.db import connection

    from nodes.history import ring, rollups
    from nodes.models import FleetRollup, Rollup
    from storage.clock import database_now

    now = database_now()
    before = now.replace(second=0, microsecond=0) - timedelta(minutes=2)
    FleetRollup.objects.create(seconds=rollups.MINUTE, start=before, groups={})
    holds = Holds(connection)
    began, cpu = time.perf_counter(), time.process_time()
    client = ring.client()
    written = rollups.roll_up(client, now=now)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    cpu = time.process_time()
    for start in written:
        since = start.timestamp()
        for bucket in range(ring.BUCKETS):
            ring.read_bucket(client, bucket, since=since, until=since + rollups.MINUTE)
    found = {
        "seconds": seconds,
        "cpu": used,
        "floor": time.process_time() - cpu,
        "minutes": len(written),
        "nodes": Rollup.objects.filter(start__in=written).count(),
        "holds": sorted(holds.seconds),
        "waited": sorted(holds.waited),
        "bytes": sum(len(body) for body in Rollup.objects.filter(start__in=written).values_list("body", flat=True)),
        "at": datetime.now(UTC).isoformat(),
    }
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
