"""The journey of `make run`: from nothing to ready, killed, started again, stopped."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120


class Run:
    """One `python -m gpuplane.run` on a data folder."""

    def __init__(self, data_dir, **settings):
        self.data_dir = data_dir
        self.output = data_dir.with_suffix(".out").open("ab")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLANE_")}
        environment |= {"GPUPLANE_DATA_DIR": str(data_dir), "GPUPLANE_PORT": "0", "GPUPLANE_SIMULATE": "0", **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuplane.run"],
            cwd=ROOT,
            env=environment,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.began = time.time()

    @property
    def credentials(self):
        return json.loads((self.data_dir / "credentials.json").read_text())

    @property
    def log(self):
        return self.data_dir.with_suffix(".out").read_text()

    @property
    def tracebacks(self):
        """What the log says from each traceback on."""
        return [part[:8000] for part in self.log.split("Traceback")[1:]]

    def until(self, condition):
        """Wait until the condition holds; what it gave."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            if found := condition():
                return found
            time.sleep(0.1)
        raise AssertionError(f"waited in vain; the run said:\n{self.log}")

    def until_ready(self, *, times=1):
        self.until(lambda: self.log.count("run.ready") >= times)
        assert httpx.get(f"{self.credentials['url']}/readyz", timeout=10).status_code == 200

    def children(self):
        """Process ids by name."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and (state := running(int(entry.name))) and state[1] == self.process.pid:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                for name, mark in MARKS.items():
                    if mark in command:
                        found[name] = int(entry.name)
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()


MARKS = {"redis": "redis.sock", "web": "gpuplane.serve", "worker": "worker@", "beat": "celery beat"}
MARKS["beat"] = " beat "


def running(process_id):
    """(state, parent) of a process that runs; None for one that is gone, or waits to be reaped."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (fields[0], int(fields[1]))


def until_gone(processes):
    deadline = time.monotonic() + 20
    while alive := [one for one in processes if running(one)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    runs = []

    def go(**settings):
        runs.append(Run(tmp_path / "data", **settings))
        return runs[-1]

    yield go
    for run in runs:
        run.end()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")
def test_killed_and_started_again(start):
    first = start()
    first.until_ready()
    before = first.credentials
    path = first.data_dir / "credentials.json"
    assert path.stat().st_mode & 0o777 == 0o600
    open_to_others = [file.name for file in first.data_dir.rglob("*") if file.is_file() and file.stat().st_mode & 0o077]
    assert not open_to_others, "the database holds sessions: nobody else reads it"
    children = first.until(lambda: len(first.children()) == 4 and first.children())
    assert f"the password is in {path}" in first.log, "the terminal says where"
    assert before["password"] not in first.log, "and not what"
    assert not any(before["password"] in file.read_text() for file in (first.data_dir / "log").iterdir())

    refused = subprocess.run(
        [sys.executable, "-m", "gpuplane.run"],
        cwd=ROOT,
        env={**os.environ, "GPUPLANE_DATA_DIR": str(first.data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert f"process {first.process.pid}" in refused.stderr

    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    until_gone(children.values())

    second = start()
    second.until_ready(times=2)
    after = second.credentials
    assert {**after, "url": ""} == {**before, "url": ""}, "tokens and password survive a restart"
    assert before["password"] not in second.log
    for token, status in ((after["api_token"], 403), (after["cluster_token"], 200)):
        answer = httpx.post(
            f"{after['url']}/extender/prioritize", content=b"{}", headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.status_code == status
    assert httpx.post(f"{after['url']}/extender/prioritize", content=b"{}").status_code == 401

    children = second.until(lambda: len(second.children()) == 4 and second.children())
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(60) == 0
    until_gone(children.values())
    assert "process.killed" not in second.log, "everything ended when asked"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")
def test_what_dies_comes_back_and_the_worker_finds_redis_again(start):
    """VIEW-5 and what the worker has counted is told by the web process again."""
    run = start()
    run.until_ready()
    canary = run.data_dir / "run" / "canary"
    run.until(canary.exists)
    children = run.until(lambda: len(run.children()) == 4 and run.children())
    for name in ("redis", "web"):
        os.kill(children[name], signal.SIGKILL)

    def again():
        found = run.children()  # whoever was killed is listed until the runner has noticed
        others = all(found.get(name) not in (None, children[name]) for name in ("redis", "web"))
        return found if others and len(found) == 4 else None

    revived = run.until(again)
    assert revived["worker"] == children["worker"]
    killed_at = time.time()
    run.until(lambda: canary.stat().st_mtime > killed_at)
    run.until(lambda: _live(run.credentials["url"]))
    run.until(lambda: _collections(run.credentials) > 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")
def test_models_are_served(start):
    """SLOT-1c a runner of the fleet starts a slot, which answers through the gateway; killed, nothing of it is left."""
    run = start(GPUPLANE_SIMULATE="1", GPUPLANE_SIMULATE_NODES="16")
    run.until_ready()
    url, headers = run.credentials["url"], {"Authorization": f"Bearer {run.credentials['api_token']}"}
    run.until(lambda: "made=True model=phi-4" in run.log and run.log.count("runner.session") == 2)
    body = {"model": "phi-4", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_SECONDS)
    assert answer.json()["choices"][0]["message"]["content"] == "word0 word1 word2 "
    slots = httpx.get(f"{url}/api/v1/slots/", params={"model": "phi-4"}, headers=headers, timeout=10).json()["results"]
    assert "ready" in {slot["state"] for slot in slots}
    processes = _of_slots(run.data_dir)
    assert processes
    os.killpg(run.process.pid, signal.SIGKILL)
    until_gone(processes)


def _of_slots(data_dir):
    """Process ids of slots' keepers and runtimes."""
    mark = str(data_dir / "runners").encode()
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [one for one in found if running(one) and mark in Path(f"/proc/{one}/cmdline").read_bytes()]


def _collections(credentials):
    """Turns of collection, which the worker counts, as Prometheus is told; 0 before the first."""
    headers = {"Authorization": f"Bearer {credentials['metrics_token']}"}
    answer = httpx.get(f"{credentials['url']}/api/v1/fleet/metrics/", headers=headers, timeout=10)
    assert answer.status_code == 200
    told = [line for line in answer.text.splitlines() if line.startswith("gpuplane_collections_total ")]
    return float(told[0].split()[1]) if told else 0.0


def _live(url):
    try:
        return httpx.get(f"{url}/livez", timeout=5, verify=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({"GPUPLANE_EXTENDER_LISTEN": "http://0.0.0.0:1"}, "only for loopback", id="door not allowed"),
        pytest.param({"GPUPLANE_PORT": "many"}, "GPUPLANE_PORT", id="setting not readable"),
        pytest.param({"GPUPLANE_COLOUR": "red"}, "no such setting", id="setting unknown"),
    ],
)
def test_refuses_with_a_sentence(start, settings, want):
    run = start(**settings)

    assert run.process.wait(60) == 1
    assert want in run.log
    assert not run.tracebacks, "\n".join(run.tracebacks)


def test_port_in_use(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = start(GPUPLANE_PORT=str(taken.getsockname()[1]))
        assert run.process.wait(60) == 1
    assert "Set GPUPLANE_PORT" in run.log
