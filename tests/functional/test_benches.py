"""`make bench` in small, but for the engine, the starts and the agents, which take minutes: a bench that nobody has
run for long still runs. No time is judged.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.protocol import COLUMNS, Sample, decode
from tests.bench.agents import frames
from tests.bench.run import missing_postgres

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[2]
NODES = 800  # fewer have not enough pods for a full page of the list, nor room for what a bench holds at once


def figures(folder: Path, *options: str) -> dict[str, float]:
    """Name → value, as the bench stored them."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("GPUPLANE_", "TESTS_SESSION_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--rounds", "1", "--nodes", str(NODES), *options],
        cwd=folder,
        env={**own, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (stored,) = (folder / "bench-results").glob("*.json")
    return {one["name"]: one["value"] for one in json.loads(stored.read_text())["figures"]}


def measured(folder: Path, parts: tuple[str, ...], want: tuple[str, ...]) -> None:
    """Each of the parts has figures, and those are numbers."""
    found = figures(folder, "--database", "sqlite", "--only", *parts)
    assert all(math.isfinite(value) and value >= 0 for value in found.values()), found
    missing = [one for one in want if not any(name.startswith(one) for name in found)]
    assert not missing, f"{missing} not among {list(found)}"


@pytest.mark.usefixtures("chromium")
def test_the_map_is_measured(tmp_path: Path) -> None:
    """With the page in a real browser."""
    measured(
        tmp_path,
        ("frames",),
        ("fleet stream", "fleet frame", "fleet tick", "fleet hub", "fleet holders", "fleet page"),
    )


def test_the_listeners_are_measured(tmp_path: Path) -> None:
    """What the cluster asks, and what people do."""
    measured(
        tmp_path,
        ("filter", "words", "nodes", "bind", "mutate", "list", "memory"),
        (
            "filter, names of 800",
            "filter, a share",
            "filter, 500 whole Nodes",
            "bind",
            "webhook mutate",
            "REST",
            "memory of",
        ),
    )


def test_the_network_is_measured(tmp_path: Path) -> None:
    """Filter with a proxy in front of PostgreSQL."""
    if missing := missing_postgres():
        pytest.skip(missing)
    found = figures(tmp_path, "--database", "postgresql", "--only", "network")
    (value,) = (value for name, value in found.items() if "1 ms away" in name)
    assert value > 4, "two round trips of 2 ms"


def test_the_program_of_reservation_pods_is_measured(tmp_path: Path) -> None:
    """SHARE-4"""
    measured(tmp_path, ("reserve",), ("reservation pod, from its start", "reservation pod, memory"))


def test_the_crowd_speaks_as_agents_do() -> None:
    """NODE-2 what thousands of simulated agents send is understood, every column of it, and is that of the simulated
    machine.
    """
    told = decode(frames.payload(frames.sample(7, 12.5, 3)))
    assert isinstance(told, Sample)
    assert (told.boot, told.seq, told.time, told.devices) == (frames.BOOT, 7, 12.5, None)
    assert told.utilisation_percent[0] == 7
    assert {name: len(getattr(told, name)) for name in COLUMNS} == dict.fromkeys(COLUMNS, 8)
