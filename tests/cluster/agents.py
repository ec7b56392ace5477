"""Agents as the chart's DaemonSet runs them, as programs beside the cluster. A module that uses them imports the
fixture `account`.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.chart import NAMESPACE
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.program import ROOT
from tests.cluster.controlplane.stack import Stack

ACCOUNT = "gpuplane-agent"


@pytest.fixture
def account(stack: Stack) -> Iterator[None]:
    """The agents' ServiceAccount, which the chart made; what ran under it is deleted after the test."""
    assert stack.api.find(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}")
    yield
    stack.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", grace_seconds=0)


def agents_pod(api: Api, name: str, on: str) -> str:
    """A pod of the DaemonSet on that node; its UID."""
    body = pod(name, NAMESPACE, serviceAccountName=ACCOUNT, nodeName=on, tolerations=[{"operator": "Exists"}])
    return str(api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", body)["metadata"]["uid"])


def token_of(api: Api, name: str, uid: str, *, audience: str = "gpuplane") -> str:
    """What the kubelet puts into the pod's projected volume."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": [audience],
            "expirationSeconds": 3600,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid},
        },
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    return str(api.create(path, body)["status"]["token"])


@contextmanager
def agent(stack: Stack, on: str, token: str, folder: Path) -> Iterator[Path]:
    """The program on a machine of eight GPUs; its log."""
    path, log = folder / f"{on}.token", folder / f"{on}.log"
    path.write_text(token)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUPLANE_")}
    environment |= {"NODE_NAME": on, "GPUPLANE_URL": f"http://127.0.0.1:{stack.doors.main}"}
    command = [sys.executable, "-m", "agent", "--source", "simulated:h100-8", "--token-file", str(path)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


@contextmanager
def agents_of(stack: Stack, label: str, folder: Path) -> Iterator[None]:
    """An agent on each node that has this label, from the moment the node is there, as by a DaemonSet."""
    over = threading.Event()
    started: set[str] = set()

    def run(running: ExitStack) -> None:
        while not over.wait(0.1):
            for node in stack.api.items("/api/v1/nodes"):
                name = node["metadata"]["name"]
                if label in node["metadata"]["labels"] and name not in started:
                    started.add(name)
                    about = f"agent-{len(started)}"
                    token = token_of(stack.api, about, agents_pod(stack.api, about, name))
                    running.enter_context(agent(stack, name, token, folder))

    with ExitStack() as running:
        thread = threading.Thread(target=run, args=(running,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
    for number in range(1, len(started) + 1):
        stack.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/agent-{number}", grace_seconds=0)
