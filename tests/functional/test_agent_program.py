"""`python -m agent` as it runs on a node: on simulated and recorded machines, against the real web process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from access.actors import SYSTEM
from access.choices import TokenScope
from access.token_services import agent_token
from storage.clock import database_now
from tests.servers.web import LiveApp

ROOT = Path(__file__).resolve().parents[2]
SOON = 30.0


@contextlib.contextmanager
def agent(app: LiveApp, node: str, token: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, on a simulated machine where nothing else is said; stopped as a kubelet stops it."""
    path = folder / f"{node}.token"
    path.write_text(token)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUPLANE_")}
    given = ("--node", node, "--server", app.url, "--token-file", str(path), "--checkpoint", str(folder / "checkpoint"))
    source = () if "--source" in options else ("--source", "simulated:h100-8")
    with (folder / f"{node}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent", *given, *source, *options],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def eventually(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, f"after {SOON:.0f} s still not: {what}"
        time.sleep(0.1)


def node_of(app: LiveApp, name: str) -> dict[str, Any]:
    """The node as REST shows it, empty where it is not known."""
    with app.client() as client:
        answer = client.get(f"/api/v1/nodes/{name}/")
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found


def samples(app: LiveApp) -> float:
    """How many samples the web process has taken."""
    lines = httpx.get(f"{app.url}/metrics", timeout=30, verify=False).text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith('gpuplane_agent_frames_total{kind="sample"}')
    )


def _more(app: LiveApp, count: float) -> bool:
    return samples(app) >= count


def _scraped(app: LiveApp, node: str) -> bool:
    with app.client(scope=TokenScope.METRICS) as client:
        lines = client.get("/api/v1/fleet/metrics/").text.splitlines()
    return sum(line.startswith("gpuplane_gpu_power_watts{") and f'node="{node}"' in line for line in lines) == 8


@pytest.fixture
def own(live_app: LiveApp) -> Callable[[str], str]:
    """Token of a node's own agent."""
    return lambda node: agent_token(node=node, actor=SYSTEM, now=database_now())


def test_a_node_sends_inventory_and_samples(live_app: LiveApp, own: Callable[[str], str], tmp_path: Path) -> None:
    """NODE-1 NODE-2 NODE-4 inventory, link matrix and samples of a simulated machine; killed and started again nothing
    is doubled.
    """
    token = own("sim-1")
    for _ in range(2):
        before = samples(live_app)
        with agent(live_app, "sim-1", token, tmp_path):
            eventually(lambda: len(node_of(live_app, "sim-1").get("inventory", ())) == 8, "eight GPUs known")
            found = node_of(live_app, "sim-1")
            assert len(found["links"]) == 28
            assert {device["model"] for device in found["inventory"]} == {"NVIDIA H100 80GB HBM3"}
            assert all(device["healthy"] for device in found["inventory"])
            eventually(partial(_more, live_app, before + 3), "samples each second")
            eventually(partial(_scraped, live_app, "sim-1"), "every GPU's power in Prometheus' text")
    assert "Traceback" not in (tmp_path / "sim-1.log").read_text()


def test_an_agent_speaks_for_its_own_node(live_app: LiveApp, own: Callable[[str], str], tmp_path: Path) -> None:
    """VIEW-6 the token of one node opens neither another node's door nor the scheduler's nor REST, and is over once
    another was issued.
    """
    stolen = own("sim-2")
    with agent(live_app, "sim-3", stolen, tmp_path):
        eventually(lambda: "status=403" in (tmp_path / "sim-3.log").read_text(), "refused")
    assert node_of(live_app, "sim-3") == {}
    with live_app.client() as client:
        bearer = {"Authorization": f"Bearer {stolen}"}
        assert client.post("/extender/filter", json={}, headers=bearer).status_code == 403
        body = {"name": "sim-3", "devices": [], "links": []}
        assert client.put("/api/v1/nodes/sim-3/inventory/", json=body, headers=bearer).status_code == 403
        own_body = {"name": "sim-2", "devices": [], "links": []}
        assert client.put("/api/v1/nodes/sim-2/inventory/", json=own_body, headers=bearer).status_code == 403
        assert client.delete("/api/v1/nodes/sim-2/", headers=bearer).status_code == 403
        assert client.get("/api/v1/nodes/", headers=bearer).status_code == 403
        assert client.get("/metrics", headers=bearer).status_code == 403
        sample = "/api/v1/agents/sim-2/samples/"
        assert client.post(sample, content=b"", headers=bearer).status_code == 400
        fresh = own("sim-2")
        assert fresh != stolen
        eventually(lambda: client.post(sample, content=b"", headers=bearer).status_code == 401, "over")


def test_a_recording_is_played(live_app: LiveApp, own: Callable[[str], str], tmp_path: Path) -> None:
    """NODE-1 a sick GPU of a recorded machine is told, and is given to nobody."""
    path = tmp_path / "machine.jsonl"
    gpus = [{"minor": minor, "uuid": f"GPU-recorded-{minor}", "model": "L40S", "memory": 2**35} for minor in range(2)]
    lines = [
        {"machine": {"devices": gpus, "links": []}},
        {"reading": {"columns": {"power_watts": [100, None]}, "health": {"GPU-recorded-1": "Xid 79"}}},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    with agent(live_app, "rec-1", own("rec-1"), tmp_path, "--source", f"recorded:{path}"):

        def sick() -> bool:
            found = {one["uuid"]: one for one in node_of(live_app, "rec-1").get("inventory", ())}
            return bool(found) and not found["GPU-recorded-1"]["healthy"] and found["GPU-recorded-0"]["healthy"]

        eventually(sick, "one GPU sick, the other well")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--source", "simulated:tpu-4"], "simulated: is followed by one of"),
        (["--source", "cuda"], "a source is nvml"),
        (["--source", "recorded:/nowhere"], "cannot be read"),
        (["--source", "simulated:h100-8", "--token-file", "/nowhere"], "the token cannot be read"),
    ],
    ids=["an unknown machine", "an unknown source", "a recording that is not there", "a token that is not there"],
)
def test_options_that_cannot_be(options: list[str], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", *options], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert told in done.stderr
