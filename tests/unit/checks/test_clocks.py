"""Clocks are read at the edge and handed down as `now`, and what is written is dated by the database's.

Read from the source: whatever names a clock below the edges is found, called or handed on as a function. Programs of
their own (agent, runner, simulator) have no database and no edge; `time.monotonic` measures how long something takes
and says no time.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
APPS = ("access", "allocations", "audit", "claims", "gpuplane", "inference", "kube", "nodes", "storage")
DATABASE = "database_now"
PROCESS = frozenset({"timezone.now", "datetime.now", "datetime.utcnow", "date.today", "time.time", "time.time_ns"})

EDGES = {
    "gpuplane/*": "the composition root: pages, REST, listeners, commands, settings",
    "claims/admission/views.py": "webhooks",
    "allocations/extender/views.py": "verbs of the extender",
    "*/admin.py": "views of the Django admin",
    "*/backends.py": "Django calls it to check a password",
    "*/tasks.py": "Celery tasks",
    "*/management/commands/*.py": "commands",
    "*/consumers/*.py": "browsers' streams",
    "*/watching.py": "watch turns: an event of the API server comes in here",
    "allocations/extender/bind.py": "a verb of the extender, tried again for seconds",
    "allocations/extender/pod_filter.py": (
        "a verb of the extender; a look at the fleet brings the time; some refusals read it"
    ),
    "allocations/extender/preempt.py": "a verb of the extender",
    "allocations/extender/bind_on_loop.py": "binds on the event loop; read in the thread that runs a batch",
    "nodes/live/ingest.py": "agents' frames come in here",
    "nodes/live/flush.py": "the loop that runs a round a second",
    "nodes/live/hub.py": "the loop that makes a picture a second for browsers",
    "inference/loop.py": "the loop of slots, and its binds beside it",
    "inference/rounds/run.py": "rounds of that loop",
    "inference/runner_socket.py": "runners' frames come in here",
    "access/sockets.py": "the loop that looks whether open sockets may stay",
}
"""Modules (patterns) in which something comes in from outside."""
EXCEPTIONS = {
    "storage/clock.py": "the database's clock itself",
    "allocations/scheduling/attempt.py": "notices that the process stood still",
    "storage/revisioned_rows.py": "the database's clock on SQLite, which has none; PostgreSQL tells it with the rows",
    "claims/lookup.py": "only for a claim that the database does not know yet: else one query more a filter",
    "kube/requeue_notify.py": (
        "a value of an annotation that has to differ from the last one; nobody compares it with a time"
    ),
}
"""Modules below the edges that may read a clock."""
PROCESS_CLOCKS = {
    "storage/clock.py": "SQLite runs in the process: they share the machine's clock",
    "storage/revisioned_rows.py": "the same",
    "kube/requeue_notify.py": "nothing of the database is dated by it",
    "allocations/scheduling/attempt.py": "notices that the process stood still",
    "gpuplane/pages/devices.py": "age of a sample, which is dated by the process that received it",
    "gpuplane/pages/nodes.py": "age of a sample",
    "gpuplane/fresh_samples.py": "age of samples",
    "nodes/consumers/one_node.py": "age of a sample",
    "nodes/live/ingest.py": "dates samples",
    "nodes/live/flush.py": "age of samples, and of the processes that share them",
    "nodes/live/hub.py": "age of samples",
    "nodes/tasks.py": "age of the processes that share samples",
    "inference/runner_socket.py": "the time of the server, for a runner's log",
    "inference/tasks.py": "age of the processes that hear runners",
    "gpuplane/listeners/reviewed_tokens.py": "end of a token that the API server, not the database, keeps",
    "gpuplane/pages/provider_sign_in.py": "end of a token that the provider, not the database, keeps",
    "gpuplane/rest/fleet_metrics.py": "age of samples",
    "gpuplane/run/probes.py": "age of a file",
    "gpuplane/run/console.py": "dates a line of the terminal",
    "gpuplane/operations.py": "end of a row that is written to see whether writing works, and rolled back",
    "gpuplane/templatetags/show.py": "how long ago something was, for people",
}
"""Modules that may read the process's clock: never to date what the database keeps, nor to say whether it ended."""


def readings(source: str) -> list[tuple[int, str]]:
    """(line, clock) for each clock that a module names outside its imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            inner = node.value
            base = inner.attr if isinstance(inner, ast.Attribute) else inner.id if isinstance(inner, ast.Name) else ""
            if f"{base}.{node.attr}" in PROCESS:
                found.append((node.lineno, f"{base}.{node.attr}"))
            elif node.attr == DATABASE:
                found.append((node.lineno, DATABASE))
        elif isinstance(node, ast.Name) and node.id == DATABASE:
            found.append((node.lineno, DATABASE))
        elif isinstance(node, ast.ImportFrom) and node.module in {"time", "django.utils.timezone"}:
            found += [(node.lineno, f"time.{one.name}") for one in node.names if one.name in {"time", "time_ns", "now"}]
    return found


@cache
def modules() -> dict[str, list[tuple[int, str]]]:
    paths = sorted(path for app in APPS for path in (ROOT / app).rglob("*.py") if "migrations" not in path.parts)
    named = {path.relative_to(ROOT).as_posix(): readings(path.read_text(encoding="utf-8")) for path in paths}
    return {name: found for name, found in named.items() if found}


def is_edge(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in EDGES)


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param("from django.utils import timezone\nx = timezone.now()", ["timezone.now"], id="Django's"),
        pytest.param("import datetime\nx = datetime.datetime.now(datetime.UTC)", ["datetime.now"], id="by its module"),
        pytest.param("f(default=timezone.now)", ["timezone.now"], id="handed on, not called"),
        pytest.param("from storage.clock import database_now\nf(database_now)", ["database_now"], id="the database's"),
        pytest.param("from time import time\nx = time()", ["time.time"], id="imported by name"),
        pytest.param("import time\nx = time.monotonic()", [], id="how long something takes"),
        pytest.param("def f(now):\n    return now", [], id="handed down"),
    ],
)
def test_a_reading_is_found(source: str, want: list[str]) -> None:
    assert [clock for _, clock in readings(source)] == want


def test_clocks_are_read_at_the_edge() -> None:
    below = {name: found for name, found in modules().items() if not is_edge(name) and name not in EXCEPTIONS}
    assert below == {}


def test_what_is_kept_is_dated_by_the_databases_clock() -> None:
    own = {
        name: wrong
        for name, found in modules().items()
        if name not in PROCESS_CLOCKS and (wrong := [one for one in found if one[1] != DATABASE])
    }
    assert own == {}


@pytest.mark.parametrize("listed", [pytest.param(EXCEPTIONS, id="exceptions"), pytest.param(PROCESS_CLOCKS, id="own")])
def test_no_exception_outlives_its_reason(listed: dict[str, str]) -> None:
    found = modules()
    stale = [name for name in listed if name not in found]
    if listed is PROCESS_CLOCKS:
        stale += [name for name in listed if all(clock == DATABASE for _, clock in found.get(name, ()))]
    assert stale == []
