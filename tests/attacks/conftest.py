"""One product and one set of honest clients for the whole suite; what they met while it was quiet."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.attacks import honest, product
from tests.servers import redis

ROOT = Path(__file__).resolve().parents[2]
WARM_SECONDS = 4.0
QUIET_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Served:
    """Requests of one kind in a while."""

    seconds: tuple[float, ...]
    problems: tuple[str, ...]

    @property
    def worst(self) -> float:
        """Of all."""
        return max(self.seconds, default=math.nan)

    @property
    def p99(self) -> float:
        """The value below which 99 of a hundred lie."""
        found = sorted(self.seconds)
        return found[min(len(found) - 1, math.ceil(0.99 * len(found)) - 1)] if found else math.nan


class Honest:
    """The process of honest clients, and what it wrote down."""

    def __init__(self, running: product.Product, record: Path) -> None:
        self._record = record
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.honest", str(running.path), str(record)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
        )

    def served(self, since: float, until: float) -> dict[str, Served]:
        """By kind, what began in a while. A request that has not ended took until now."""
        assert self.process.poll() is None, "the honest clients have a defect: see their traceback"
        now = time.monotonic()
        found: dict[str, dict[float, dict[str, Any]]] = {kind: {} for kind in honest.KINDS}
        for line in self._record.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                told = json.loads(line)
                if since <= told["at"] < until:
                    found[told["kind"]][told["at"]] = told
        return {
            kind: Served(
                tuple(told.get("seconds", now - at) for at, told in asked.items()),
                tuple(told["problem"] for told in asked.values() if told.get("problem")),
            )
            for kind, asked in found.items()
        }

    def stop(self) -> None:
        """Returns when it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[product.Product]:
    """The product, running."""
    try:
        redis.server_url("attacks")
    except redis.NoRedis as missing:
        pytest.skip(str(missing))
    with django_db_blocker.unblock(), product.running(tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.fixture(scope="session")
def clients(attacked: product.Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    """Honest clients, warm."""
    started = Honest(attacked, tmp_path_factory.mktemp("honest") / "record.jsonl")
    time.sleep(WARM_SECONDS)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def quiet(clients: Honest) -> dict[str, Served]:
    """How they are served while nobody attacks."""
    began = time.monotonic()
    time.sleep(QUIET_SECONDS)
    found = clients.served(began, time.monotonic())
    for kind, served in found.items():
        assert served.seconds, f"{kind}: nothing was asked"
        assert not served.problems, (kind, served.problems[:3])
    return found
