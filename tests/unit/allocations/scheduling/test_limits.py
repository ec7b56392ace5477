"""Time limits that depend on each other."""

from __future__ import annotations

import ast
from datetime import timedelta
from pathlib import Path

from allocations.scheduling import limits

ROOT = Path(__file__).parents[4]


def test_collection_waits_until_an_attempt_can_send_nothing_more() -> None:
    """LEASE-3 an attempt's last request begins before its deadline; connecting and its answer take a time-out each."""
    last_answer = limits.BIND_DEADLINE + 2 * timedelta(seconds=limits.REQUEST_SECONDS)
    assert last_answer + limits.CLOCKS_APART == limits.RESERVED_LIMIT
    assert limits.COLLECTING_DEADLINE < limits.BIND_DEADLINE
    assert timedelta(seconds=limits.LOOK_SECONDS) <= limits.CLOCKS_APART


def test_limits_are_set_in_one_place() -> None:
    """LEASE-3 who collects or counts reservations takes their limit from there."""
    users = {"allocations/reconcile/garbage_collection.py", "allocations/publish/ledger_metrics.py"}
    for path in users:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        imported = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "allocations.scheduling.limits"
            for name in node.names
        }
        assert "RESERVED_LIMIT" in imported, path
