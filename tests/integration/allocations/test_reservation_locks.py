"""Reservations of devices are locked in one order, whoever changes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from allocations.models import QueueReservation
from allocations.scheduling.queueing.evictions import _keep
from autoscaling.rounds.serving import end_keeping
from tests.databases import TestDatabase, somebody_waits_for_a_lock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("growth", "change"),
    [
        pytest.param(True, lambda: end_keeping(now=NOW), id="those of new nodes end"),
        pytest.param(False, lambda: _keep({}, NOW), id="those of takers end"),
        pytest.param(True, lambda: _keep({"p1": (0, []), "p2": (0, [])}, NOW), id="takers replace those of new nodes"),
    ],
)
def test_reservations_are_locked_by_key(ledger_db: TestDatabase, growth: bool, change: Callable[[], None]) -> None:
    """SCALE-4 QUEUE-3 While a transaction waits for the first row it holds no later one, so no two deadlock."""
    for pk in (2, 1):  # the later key is the older reservation, and the first that a plan without an index finds
        made_at, until = NOW - timedelta(seconds=pk), NOW + timedelta(minutes=1)
        QueueReservation.objects.create(
            pk=pk, pod_uid=f"p{pk}", priority=0, devices=[], growth=growth, made_at=made_at, until=until
        )
    first_is_held = threading.Event()

    def hold_the_first() -> list[int]:
        with transaction.atomic():
            QueueReservation.objects.select_for_update().get(pk=1)
            first_is_held.set()
            deadline = time.monotonic() + 30
            while not somebody_waits_for_a_lock() and time.monotonic() < deadline:
                time.sleep(0.01)
            free = QueueReservation.objects.select_for_update(skip_locked=True).filter(pk=2)
            return list(free.values_list("pk", flat=True))

    def change_both() -> None:
        first_is_held.wait(30)
        with connection.cursor() as cursor:
            cursor.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
            try:
                change()
            finally:
                cursor.execute("RESET enable_indexscan; RESET enable_bitmapscan")

    assert ledger_db.race([hold_the_first, change_both]) == [[2], None]
