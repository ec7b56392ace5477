"""Cold starts: how long each program takes until it is ready, how large `make run` is, and the sizes of the images.

Called by `run`. A program is ready once it does what it is for: web answers /readyz with 200, a worker says so, beat
has sent a task, a node's program opens its connection. The floor is a Python that has set up Django, or for nodes'
programs one that starts and ends, in the same rounds. Bytecode is kept, as it is in the images. Memory is PSS: pages
that processes share are divided among them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import redis

from gpuplane.run import probes, procfile
from tests.bench.figures import Aim, Figure, Report, timed_figure
from tests.bench.wire import Rounds
from tests.images import tools

ROOT: Final = Path(__file__).resolve().parents[2]
COMMANDS: Final = procfile.read(ROOT / "Procfile")
READY: Final = " ready."
"""What a worker writes once it takes tasks."""
FIRST_QUEUE: Final = "gpuplane:celery:default"
"""Of Redis: where beat sends tasks."""
DJANGO: Final = "import django; django.setup()"
PATIENCE_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.005
SETTLE_SECONDS: Final = 15.0
"""How long `make run` has been ready when its memory is read."""
AGENT_MOST_MS: Final = 150.0


def measure_starts(report: Report, folder: Path, *, rounds: int) -> None:
    """Programs, `make run`, images."""
    folder.mkdir(parents=True)
    _measure_programs(report, folder, rounds=rounds)
    _measure_nodes(report, folder, rounds=rounds)
    _measure_run(report, folder)
    for name, size in tools.sizes().items():
        report.add(Figure(name=f"image {name}", database="", unit="MB", value=size / 1e6))


def _own() -> dict[str, str]:
    """This process's environment, but that bytecode is kept."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _measure_programs(report: Report, folder: Path, *, rounds: int) -> None:
    """bootstrap on an empty and on a migrated database, then the processes of the chart, each alone."""
    times: dict[str, Rounds] = {}
    for number in range(rounds + 1):
        environment = {
            **_own(),
            "GPUPLANE_DATA_DIR": str(folder / f"data-{number}"),
            "GPUPLANE_SIMULATE": "0",
            "PYTHONPATH": str(ROOT),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        took = {
            "bootstrap, empty database": _ends(["manage.py", "bootstrap"], environment),
            "bootstrap, nothing to do": _ends(["manage.py", "bootstrap"], environment),
            "web": _until_web_is_ready(environment, folder / "web.log"),
        }
        for name in ("worker", "watch"):
            log = folder / f"{name}-{number}.log"
            took[name] = _until(COMMANDS[name][1:], environment, log, partial(_says, log, READY))
        queues = redis.Redis.from_url(environment["GPUPLANE_REDIS_URL"])
        queues.flushall()
        sent = partial(queues.exists, FIRST_QUEUE)
        took["beat"] = _until(COMMANDS["beat"][1:], environment, folder / "beat.log", sent)
        queues.close()
        least = _ends(["-c", DJANGO], environment)
        for name, one in took.items() if number else ():  # the first one compiles
            kept = times.setdefault(name, Rounds())
            kept.product.append([one])
            kept.floor.append([least])
    for name, kept in times.items():
        report.add(timed_figure(f"start of {name}", kept, database="sqlite", note="the floor sets up Django"))


def _measure_nodes(report: Report, folder: Path, *, rounds: int) -> None:
    """The programs of GPU nodes, until they are connected."""
    options = {
        "agent": ["--source", "simulated:h100-8", "--checkpoint", ""],
        "runner": ["--simulated", str(folder / "memory"), "--state", str(folder / "state")],
    }
    for name, words in options.items():
        kept = Rounds()
        for number in range(4 * rounds + 1):
            took = _until_connected(["-m", name, "--node", "n1", *words], folder / f"{name}.log")
            least = _ends(["-c", "pass"], _own())
            if number:
                kept.product.append([took])
                kept.floor.append([least])
        figure = timed_figure(f"start of {name}, until it connects", kept, note="the floor is python -c pass")
        aims = [Aim(f"median ≤ {AGENT_MOST_MS:g} ms", figure.value, AGENT_MOST_MS)] if name == "agent" else []
        report.add(Figure(**{**vars(figure), "aims": aims}))


def _measure_run(report: Report, folder: Path) -> None:
    """`make run` with 64 nodes: from nothing to ready, again with its data, and the memory of each process."""
    environment = {name: value for name, value in _own().items() if not name.startswith("GPUPLANE_")}
    environment |= {"GPUPLANE_DATA_DIR": str(folder / "run"), "GPUPLANE_PORT": "0", "PYTHONPATH": str(ROOT)}
    for which in ("first", "next"):
        log = folder / f"run-{which}.log"
        began = time.perf_counter()
        with _running(["-m", "gpuplane.run"], environment, log, stopped_by=signal.SIGINT) as process:
            _wait(process, log, partial(_says, log, "gpuplane is ready at"))
            took = time.perf_counter() - began
            report.add(Figure(name=f"make run, {which} start until ready", database="sqlite", unit="s", value=took))
            if which == "next":
                time.sleep(SETTLE_SECONDS)
                least = _memory_of_django(environment)
                for name, mb in _memories(process.pid).items():
                    floor = least if name in {"web", "worker", "watch", "beat"} else None
                    report.add(Figure(f"make run, memory of {name} (pss)", "sqlite", "MB", mb, floor=floor))


def _memories(runner: int) -> dict[str, float]:
    """PSS in MB by process of `make run`, with what each of them started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
    found = {"the runner of processes": _pss(runner)}
    for child in (pid for pid, parent in parents.items() if parent == runner):
        name = _name(child)
        tree = {child}
        while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
            tree |= more
        found[name] = found.get(name, 0.0) + sum(map(_pss, tree))
    return found


def _name(pid: int) -> str:
    """Of a process of the Procfile, by its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    for name, command in COMMANDS.items():
        if words[1 : len(command)] == command[1:]:
            return name
    return "redis" if "redis" in words[0] else Path(words[0]).name


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def _memory_of_django(environment: Mapping[str, str]) -> float:
    """PSS in MB of a Python that has set up Django and sleeps."""
    code = f"{DJANGO}; import signal; print('asleep', flush=True); signal.pause()"
    given = {**environment, "DJANGO_SETTINGS_MODULE": "gpuplane.settings"}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=given, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        size = _pss(process.pid)
        process.kill()
    return size


@contextmanager
def _running(
    words: list[str], environment: Mapping[str, str], log: Path, *, stopped_by: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(stopped_by)
        process.wait(PATIENCE_SECONDS)


def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


def _wait(process: subprocess.Popen[bytes], log: Path, true: Callable[[], object]) -> None:
    """Another process sends no event, so it is looked at often. Raises RuntimeError where it ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} is not ready:\n{log.read_text()}")
        time.sleep(LOOK_SECONDS)


def _until(words: list[str], environment: Mapping[str, str], log: Path, true: Callable[[], object]) -> int:
    """Nanoseconds from the start."""
    began = time.perf_counter_ns()
    with _running(words, environment, log) as process:
        _wait(process, log, true)
        return time.perf_counter_ns() - began


def _until_web_is_ready(environment: Mapping[str, str], log: Path) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {**environment, "GPUPLANE_PORT": str(port)}
    return _until(COMMANDS["web"][1:], given, log, lambda: not probes.failed_checks(f"http://127.0.0.1:{port}/readyz"))


def _until_connected(words: list[str], log: Path) -> int:
    """Nanoseconds until it connects to a server, which then says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        environment = {
            **_own(),
            "GPUPLANE_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "GPUPLANE_TOKEN": "t",
        }
        began = time.perf_counter_ns()
        with _running(words, environment, log):
            connection, _ = server.accept()
            took = time.perf_counter_ns() - began
            connection.close()
    return took


def _ends(words: list[str], environment: Mapping[str, str]) -> int:
    """Nanoseconds until it has ended well."""
    began = time.perf_counter_ns()
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter_ns() - began
