"""The program of reservation pods: how long until it has named its GPU, and how large it is while it sleeps.

Called by `run`. The floors are those of any Python: one that starts and ends (`python -c pass`), and one that sleeps.
The API server is a stand-in on loopback, in this process; the driver's files are there.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figures import Aim, Figure, Report, timed_figure
from tests.bench.wire import Rounds
from tests.fakes.pod_api import pod_api

ROOT = Path(__file__).resolve().parents[2]
SLEEPER = "import signal, sys; sys.stderr.write('asleep\\n'); signal.pause()"
START_MOST_MS = 100.0
MEMORY_MOST_MIB = 20.0


def measure_reserving(report: Report, folder: Path, *, rounds: int) -> None:
    """Time to the annotation, and resident memory."""
    information = folder / "nvidia" / "gpus" / "0000:3b:00.0" / "information"
    information.parent.mkdir(parents=True)
    information.write_text("GPU UUID: \t GPU-a\nDevice Minor: \t 0\n")
    times = Rounds()
    sizes: list[float] = []
    floors: list[float] = []
    with pod_api(folder / "account") as api:
        environment = {**api.environment(), "GPUPLANE_NVIDIA_PROC": str(folder / "nvidia"), "PATH": os.environ["PATH"]}
        for number in range(rounds + 1):
            assert api.pod is not None
            api.pod["metadata"]["annotations"] = {}
            took, size = _until_it_sleeps(["-m", "agent.reserve"], environment, "reserve.written")
            began = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", "pass"], cwd=ROOT, env=environment, check=True)
            least = time.perf_counter_ns() - began
            if number:  # the first one compiles
                times.product.append([took])
                times.floor.append([least])
                sizes.append(size)
                floors.append(_until_it_sleeps(["-c", SLEEPER], environment, "asleep")[1])
    start = timed_figure("reservation pod, from its start to its annotation", times, note="the floor is python -c pass")
    start = Figure(**{**vars(start), "aims": [Aim(f"median ≤ {START_MOST_MS:g} ms", start.value, START_MOST_MS)]})
    report.add(start)
    size = statistics.median(sizes)
    report.add(
        Figure(
            name="reservation pod, memory while it sleeps (rss)",
            database="",
            unit="MiB",
            value=size,
            p99=max(sizes),
            floor=statistics.median(floors),
            samples=len(sizes),
            aims=[Aim(f"≤ {MEMORY_MOST_MIB:g} MiB", size, MEMORY_MOST_MIB)],
            note="the floor is a Python that sleeps",
        )
    )


def _until_it_sleeps(words: list[str], environment: dict[str, str], line: str) -> tuple[int, float]:
    """(nanoseconds until it writes a line that begins so, MiB that are resident then)."""
    began = time.perf_counter_ns()
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        took = time.perf_counter_ns() - began
        if not said.startswith(line):
            raise RuntimeError(f"{words}: {said!r}")
        return took, _resident(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def _resident(number: int) -> float:
    """MiB, by the kernel."""
    for line in Path(f"/proc/{number}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel tells no VmRSS")
