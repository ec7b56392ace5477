"""`python -m tests.bench.cluster`, run by `make bench-cluster`: every contender in turn, round after round, on one
cluster.

Each round has another order. The API server's and etcd's weight grows over a run, and so does the ledger's history; the
rotation spreads that. A contender that fails in a round is told, its logs are kept, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson

from tests.bench.cluster.burst import Burst, burst
from tests.bench.cluster.contender import Contender, Size
from tests.bench.cluster.contenders import NAMES as USUAL
from tests.bench.cluster.contenders import close_all, contenders
from tests.bench.cluster.ground import GPUS, Ground
from tests.bench.cluster.halves import HALVES, with_halves
from tests.bench.cluster.measuring import WatchEnded
from tests.bench.cluster.printing import summary
from tests.bench.machine import load, machine_told
from tests.cluster.controlplane.api import ApiRefused
from tests.cluster.controlplane.program import ProgramFailed
from tests.servers import postgres, session

RESULTS = Path("bench-results")
SIZES = ("one", "four")
NAMES = (*USUAL, *HALVES)
FAILURES = (AssertionError, ApiRefused, ProgramFailed, WatchEnded, httpx.HTTPError)


def main() -> int:
    """Command line. 0 when every burst could be measured; aims are told, not judged."""
    given = _parsed()
    if given.profile:
        os.environ["BENCH_PROFILE"] = given.profile
    names = [name for name in NAMES if name in given.contenders]
    began = datetime.now(UTC)
    machine = machine_told()
    if any(name.startswith("postgresql") for name in names):
        try:
            postgres.server_url()
        except postgres.NoPostgres as missing:
            machine["left_out"] = str(missing)
            names = [name for name in names if not name.startswith("postgresql")]
    sizes = [size for size in _sizes(given.nodes, given.pods) if size.name in given.sizes]
    # not under the checkout: the path of a Unix socket holds 107 bytes
    ground = Ground(Path(tempfile.mkdtemp(prefix="gpuplane-bench-")), nodes=given.nodes)
    run = Run(ground, sizes, began=began, machine=machine)
    try:
        ground.start()
        run.contenders = contenders(ground, [name for name in names if name in USUAL])
        run.contenders += with_halves(ground, names, run.contenders, pods=max(size.pods for size in sizes))
        for number in range(given.rounds):
            run.round(number)
    finally:
        close_all(run.contenders)
        ground.stop()
        shutil.rmtree(ground.folder, ignore_errors=True)
    machine["load_after"] = load()
    machine["seconds"] = (datetime.now(UTC) - began).total_seconds()
    run.write()
    run.print()
    return 1 if run.failures else 0


class Run:
    """What was measured so far; written after every burst, so that a run that is stopped leaves what it had."""

    def __init__(self, ground: Ground, sizes: Sequence[Size], *, began: datetime, machine: dict[str, Any]) -> None:
        self.ground = ground
        self.sizes = sizes
        self.machine = machine
        self.contenders: list[Contender] = []
        self.bursts: list[Burst] = []
        self.failures: list[dict[str, Any]] = []
        self._began = began

    def round(self, number: int) -> None:
        """Everyone once, beginning with another one than the round before."""
        turn = number % max(len(self.contenders), 1)
        for contender in (*self.contenders[turn:], *self.contenders[:turn]):
            try:
                contender.open()
                for size in self.sizes:
                    self._add(burst(self.ground, contender, size, number))
            except FAILURES as error:
                self._failed(contender, number, error)
            finally:
                contender.close()

    def write(self) -> None:
        """To bench-results/cluster.json."""
        RESULTS.mkdir(exist_ok=True)
        stored = {
            "at": self._began,
            "machine": self.machine,
            "nodes": len(self.ground.nodes),
            "bursts": [one.stored for one in self.bursts],
            "failures": self.failures,
        }
        (RESULTS / "cluster.json").write_bytes(orjson.dumps(stored, option=orjson.OPT_INDENT_2))

    def print(self) -> None:
        """Tables, then what could not be measured."""
        titles = {one.name: one.title for one in self.contenders}
        print(f"\n{summary(self.bursts, titles, [size.name for size in self.sizes])}")
        machine = self.machine
        print(
            f"{len(self.ground.nodes)} nodes × {GPUS} GPUs; {machine['cores']} cores ({machine['processor']}), Python"
            f" {machine['python']}, load {machine['load_before']} before and {machine['load_after']} after,"
            f" {machine['seconds']:.0f} s"
        )
        if "left_out" in machine:
            print(f"without PostgreSQL: {machine['left_out']}")
        for one in self.failures:
            print(f"FAILED {one['contender']}, round {one['round']}: {one['error']}")
        print(f"written to {RESULTS / 'cluster.json'}")

    def _add(self, one: Burst) -> None:
        self.bursts.append(one)
        print(
            f"  round {one.round + 1} {one.contender:18} {one.size:5} {one.rate:6.1f} pods/s  ({one.by_conditions:.0f}"
            f" by conditions; made in {one.made_seconds:.0f} s, first binding after {one.start_seconds:.1f} s, cleaned"
            f" in {one.cleaned_seconds:.0f} s{', watch dropped ' + str(one.resumed) + ' ×' if one.resumed else ''})",
            flush=True,
        )
        for line in one.profile:
            print(f"    {line}")
        self.write()

    def _failed(self, contender: Contender, number: int, error: BaseException) -> None:
        place = RESULTS / f"logs-{contender.name}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for log in self.ground.folder.rglob("*.log"):
            shutil.copyfile(log, place / f"{log.parent.name}-{log.name}")
        traceback.print_exception(error)
        print(f"  round {number + 1} {contender.name} FAILED; logs in {place}", flush=True)
        self.failures.append({"contender": contender.name, "round": number, "error": str(error)})
        self.write()


def _sizes(nodes: int, pods: int) -> list[Size]:
    most = min(pods, nodes * GPUS)
    return [Size("one", most, 1), Size("four", most // 4, 4, policy="contiguous")]


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-cluster", description="schedulers side by side on one cluster")
    parser.add_argument("--nodes", type=int, default=500, help=f"nodes of {GPUS} GPUs (default 500)")
    parser.add_argument(
        "--pods", type=int, default=4000, help="pods of one GPU; a quarter as many of four (default 4000)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument(
        "--profile", choices=("waits", "calls"), help="print where gpuplane's web process spends its time; slows it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    for name in [one for one in os.environ if one.startswith("GPUPLANE_") and one != "GPUPLANE_TEST_POSTGRES_BIN"]:
        if name != "GPUPLANE_TOOLS_DIR":
            del os.environ[name]
    session.enter()
    try:
        status = main()
    finally:
        session.leave()
    sys.exit(status)
