"""The journey of `make run` with its simulated cluster: ready at once, then nodes come for pods that wait, and go."""

import os
import signal
import sys

import httpx
import pytest

from tests.functional.test_run import Run, until_gone

pytestmark = pytest.mark.heavy

NODES = 4
MODELS = {"B200", "L4"}


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "data", GPUPLANE_SIMULATE="1", GPUPLANE_SIMULATE_NODES=str(NODES))
    yield made
    made.end()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")
def test_a_node_is_asked_for_and_serves(run):
    """SCALE-1 SCALE-3 SCALE-4 The ordinary loop against the simulated Karpenter; readiness waits for no node of it."""
    run.until_ready()
    url, token = run.credentials["url"], run.credentials["api_token"]
    checks = httpx.get(f"{url}/readyz", timeout=10).json()["checks"]
    assert checks["simulation"]["detail"].endswith(f"of {NODES} nodes registered")
    assert checks["cluster"] == {"ok": True, "detail": ""}

    def rest(path):
        answer = httpx.get(f"{url}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"}, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    served = run.until(lambda: rest("scaling-requests/?state=served"))
    assert {row["model"] for row in served} <= MODELS

    def runs_there():
        made = {row["node"] for row in rest("node-claims/") if row["inventory_at"]}
        return made & {row["node"] for row in rest("allocations/?live=true&page_size=1000")}

    assert run.until(runs_there), "pods run on the node"
    kubeconfig = run.data_dir / "simulator" / "kubeconfig"
    assert kubeconfig.stat().st_mode & 0o777 == 0o600

    children = run.children().values()
    os.kill(run.process.pid, signal.SIGINT)
    assert run.process.wait(timeout=60) == 0
    until_gone(children)
    assert not run.tracebacks, "\n".join(run.tracebacks)
