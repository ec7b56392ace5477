"""`python -m agent.reserve` as a process in a reservation pod: with a test's files of the driver, at a stand-in for the
API server.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml_stub import library
from tests.fakes.pod_api import Answer, PodApi, pod_api

ROOT = Path(__file__).resolve().parents[2]
SOON = 30.0


class Running:
    """The program, and its lines."""

    def __init__(self, api: PodApi, proc: Path, environment: dict[str, str | None]) -> None:
        given = {**api.environment(), "GPUPLANE_NVIDIA_PROC": str(proc), "PATH": os.environ["PATH"], **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent.reserve"],
            cwd=ROOT,
            env={name: value for name, value in given.items() if value is not None},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        self._pipe = self.process.stderr
        self.lines: list[str] = []
        self._text = b""

    def wait_for(self, event: str) -> str:
        """The first line of this event."""
        deadline = time.monotonic() + SOON
        while True:
            for line in self.lines:
                if line.startswith(f"reserve.{event} "):
                    return line
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._pipe.fileno(), 65536) if ready else b""
            assert piece, f"no {event}: {self.lines}"
            *whole, self._text = (self._text + piece).split(b"\n")
            self.lines += [line.decode() for line in whole]

    def close(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.wait(SOON)
        self._pipe.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(SOON)

    def ended(self) -> int:
        """The exit code, without a signal."""
        return self.process.wait(SOON)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PodApi]:
    with pod_api(tmp_path / "account") as made:
        yield made


@pytest.fixture
def start(api: PodApi, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start the program; each one is gone after the test."""
    started: list[Running] = []

    def run(**environment: str | None) -> Running:
        started.append(Running(api, tmp_path / "nvidia", environment))
        return started[-1]

    yield run
    for one in started:
        one.close()


def show(folder: Path, *uuids: str) -> None:
    """Have the driver show these GPUs, all at once."""
    made = folder / "made"
    for minor, uuid in enumerate(uuids):
        path = made / "gpus" / f"0000:{0x10 + minor:02x}:00.0" / "information"
        path.parent.mkdir(parents=True)
        path.write_text(f"Model: \t\t NVIDIA L40S\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    made.rename(folder / "nvidia")


def test_it_names_its_gpu_and_sleeps(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 one GET, one PATCH, and no more."""
    show(tmp_path, "GPU-a")
    program = start()
    program.wait_for("written")
    assert api.annotation == "GPU-a"
    assert program.end() == 0
    assert api.sent() == ["GET", "PATCH"]
    assert program.lines == ["reserve.written uuids=GPU-a"]


def test_several_gpus_of_a_node_that_shows_all(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 by PCI address."""
    assert api.pod is not None
    api.pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    show(tmp_path, *(f"GPU-{n}" for n in range(8)))
    start(NVIDIA_VISIBLE_DEVICES="GPU-6,GPU-1").wait_for("written")
    assert api.annotation == "GPU-1,GPU-6"


def test_a_container_that_was_restarted(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 nothing is written where the annotation is right already, and what is there now where it is not."""
    show(tmp_path, "GPU-a")
    start().wait_for("written")
    start().wait_for("unchanged")
    assert api.sent() == ["GET", "PATCH", "GET"]
    (tmp_path / "nvidia").rename(tmp_path / "before")
    show(tmp_path, "GPU-b")
    start().wait_for("written")
    assert api.annotation == "GPU-b"


def test_a_driver_that_comes_late(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 it is waited for."""
    program = start()
    assert "the driver shows no GPU" in program.wait_for("waiting")
    assert api.annotation is None
    show(tmp_path, "GPU-a")
    program.wait_for("written")
    assert api.annotation == "GPU-a"


def test_a_signal_while_it_waits_for_the_driver(api: PodApi, start: Callable[..., Running]) -> None:
    """SHARE-4"""
    program = start()
    program.wait_for("waiting")
    assert program.end() == 0
    assert api.sent() == ["GET"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_waits_for_an_answer(
    number: int, api: PodApi, start: Callable[..., Running], tmp_path: Path
) -> None:
    """SHARE-4"""
    show(tmp_path, "GPU-a")
    with api.answering:  # the server answers nothing meanwhile
        program = start()
        assert api.arrived.acquire(timeout=SOON)
        assert program.end(number) == 0
    assert api.annotation is None


def test_a_signal_while_it_pauses(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 also during the longest pause that a server asks for."""
    show(tmp_path, "GPU-a")
    api.say(Answer(429, {"Retry-After": "30"}))
    program = start()
    program.wait_for("retry")
    assert program.end() == 0


def test_a_signal_while_the_driver_hangs(start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 a call into the driver that never returns keeps nobody waiting."""
    stub = tmp_path / "lib"
    stub.mkdir()
    (stub / library().name).symlink_to(library())
    (tmp_path / "modules").mkdir()
    hanging = "import ctypes\nclass NVMLError(Exception): pass\nclass NVMLLibraryMismatchError(Exception): pass\n"
    hanging += "def nvmlInit():\n    while True: ctypes.CDLL(None).pause()\n"
    (tmp_path / "modules" / "pynvml.py").write_text(hanging)
    program = start(LD_LIBRARY_PATH=str(stub), PYTHONPATH=str(tmp_path / "modules"))
    in_the_driver(program)
    assert program.end() == 0


def in_the_driver(program: Running) -> None:
    """Wait until a second thread of the program is there, which asks the driver."""
    deadline = time.monotonic() + SOON
    while len(list(Path(f"/proc/{program.process.pid}/task").iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("answers", "want_requests"),
    [
        pytest.param([503, 500], ["GET", "GET", "GET", "PATCH"], id="5xx"),
        pytest.param([Answer(429, {"Retry-After": "0"})], ["GET", "GET", "PATCH"], id="429"),
        pytest.param([401], ["GET", "GET", "PATCH"], id="401"),
        pytest.param([409], ["GET", "GET", "PATCH"], id="409"),
        pytest.param([Answer(lost=True)], ["GET", "GET", "PATCH"], id="a connection that breaks"),
    ],
)
def test_temporary_errors(
    answers: list[int | Answer], want_requests: list[str], api: PodApi, start: Callable[..., Running], tmp_path: Path
) -> None:
    """SHARE-4 tried again until it works."""
    show(tmp_path, "GPU-a")
    api.say(*answers)
    program = start()
    program.wait_for("written")
    assert api.sent() == want_requests
    assert api.annotation == "GPU-a"


def test_a_token_that_was_rotated_meanwhile(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 it is read again."""
    show(tmp_path, "GPU-a")
    api.rotate("token-2", file=False)
    program = start()
    assert "answers 401" in program.wait_for("retry")
    api.rotate("token-2")
    program.wait_for("written")
    assert api.annotation == "GPU-a"


def test_an_account_without_access(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 401 to tokens that were read anew ends it after a while; the kubelet starts it again."""
    show(tmp_path, "GPU-a")
    api.rotate("token-2", file=False)
    program = start()
    assert "answers 401" in program.wait_for("refused")
    assert program.ended() == 1
    assert api.sent() == ["GET"] * 5


@pytest.mark.parametrize(
    ("answer", "environment", "want_line"),
    [
        pytest.param(403, {}, "GET: the API server answers 403", id="no permission"),
        pytest.param(None, {"POD_NAME": None}, "missing or invalid in the environment: POD_NAME", id="no name"),
        pytest.param(None, {"POD_NAME": "../x"}, "missing or invalid in the environment: POD_NAME", id="a forged name"),
        pytest.param(None, {"GPUPLANE_SERVICE_ACCOUNT_DIR": "/nowhere"}, "/nowhere is not usable", id="no account"),
    ],
)
def test_permanent_errors(
    answer: int | None,
    environment: dict[str, str | None],
    want_line: str,
    api: PodApi,
    start: Callable[..., Running],
    tmp_path: Path,
) -> None:
    """SHARE-4 one line, and exit code 1."""
    show(tmp_path, "GPU-a")
    if answer:
        api.say(answer)
    program = start(**environment)
    assert want_line in program.wait_for("refused")
    assert program.ended() == 1
    assert len(program.lines) == 1
    assert api.annotation is None


def test_a_pod_that_is_gone(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 it ends by itself."""
    show(tmp_path, "GPU-a")
    api.pod = None
    program = start()
    program.wait_for("gone")
    assert program.ended() == 0


def test_another_pod_of_the_same_name(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 SHARE-7 a container that outlives its pod does not write on the next one, not even at the last moment."""
    program = start()
    program.wait_for("waiting")
    assert api.pod is not None
    api.pod["metadata"]["uid"] = "uid-2"
    show(tmp_path, "GPU-a")
    assert "another pod of this name" in program.wait_for("gone")
    assert program.ended() == 0
    assert api.sent() == ["GET", "PATCH", "GET"]
    assert api.annotation is None


def test_forged_devices_are_not_written(api: PodApi, start: Callable[..., Running], tmp_path: Path) -> None:
    """SHARE-4 the environment selects among what the driver shows, no more."""
    show(tmp_path, "GPU-a")
    program = start(NVIDIA_VISIBLE_DEVICES="GPU-b")
    assert "which the driver does not show" in program.wait_for("waiting")
    assert program.end() == 0
    assert api.annotation is None


def _loaded(code: str) -> set[str]:
    """The modules that a Python has loaded after this."""
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_it_is_the_standard_library_only() -> None:
    """SHARE-4 so that it starts at once and is small; `make bench` has the figures."""
    loaded = _loaded("import agent.reserve.__main__") - _loaded("0")
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"agent"}
    assert {name for name in loaded if name.startswith("agent.")} == {
        "agent.reserve",
        "agent.reserve.__main__",
        "agent.reserve.gpus",
        "agent.reserve.http1",
        "agent.reserve.nvml",
        "agent.reserve.pod",
    }
    assert not {"asyncio", "ctypes"} & loaded
