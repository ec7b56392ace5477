"""The process of honest clients as the tests see it: how everybody was served in a while."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attacks import honest, product

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0


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
        """By kind, what began in a while.

        A request that has not ended took until now; while the clients themselves stood still is taken off.
        """
        assert self.process.poll() is None, "the honest clients have a defect: see their traceback"
        now = time.monotonic()
        found: dict[str, dict[float, dict[str, Any]]] = {kind: {} for kind in (*honest.KINDS, honest.STILL)}
        record = self._record.read_text() if self._record.exists() else ""
        for line in record.splitlines(keepends=True):
            if line.endswith("\n"):
                told = json.loads(line)
                if since <= told["at"] < until:
                    found[told["kind"]][told["at"]] = told
        still = [(at, at + told["seconds"]) for at, told in found.pop(honest.STILL).items()]
        return {
            kind: Served(
                tuple(waited(at, at + told.get("seconds", now - at), still) for at, told in asked.items()),
                tuple(told["problem"] for told in asked.values() if told.get("problem")),
            )
            for kind, asked in found.items()
        }

    def wait_until_served(self) -> None:
        """Until everybody was, once."""
        deadline = time.monotonic() + START_SECONDS
        while not all(served.seconds for served in self.served(0, time.monotonic()).values()):
            assert time.monotonic() < deadline, self._record.read_text()[-2000:]
            time.sleep(0.2)

    def stop(self) -> None:
        """Returns when it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def waited(began: float, ended: float, still: list[tuple[float, float]]) -> float:
    """Seconds between two times, without those in which the clients stood still."""
    return ended - began - sum(max(min(ended, end) - max(began, begin), 0.0) for begin, end in still)
