"""`make cluster-up`: the cluster of the tests, with gpuplane in it, to play with; Ctrl-C stops it.

Options by `python -m tests.cluster.controlplane --help`. Everything lies in one folder, which is removed at the end.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import two_islands
from tests.cluster.controlplane.program import ProgramFailed
from tests.cluster.controlplane.stack import Stack
from tests.cluster.controlplane.tools import ToolsError, program
from tests.servers import session

MODELS = (("H100", "80Gi", None), ("A100", "40Gi", two_islands()))


def main() -> int:
    """Start, say how to reach it, wait for a signal, stop."""
    parser = argparse.ArgumentParser(prog="make cluster-up", description="a Kubernetes on loopback with gpuplane in it")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of eight GPUs, played by KWOK (default 4)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    session.enter()
    folder = Path(tempfile.mkdtemp(prefix="gpuplane-cluster-"))
    try:
        return _run(folder, nodes=given.nodes, database=given.database, ended=ended)
    except (ToolsError, ProgramFailed) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        session.leave()
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, *, nodes: int, database: str, ended: threading.Event) -> int:
    plane = ControlPlane(folder)
    stack = Stack(plane, folder)
    try:
        print("etcd, kube-apiserver, kube-controller-manager, KWOK …", flush=True)
        plane.start()
        print("gpuplane, kube-scheduler …", flush=True)
        stack.install()
        stack.start_gpuplane(vendor=database)
        stack.start_scheduler()
        for number in range(nodes):
            model, memory, links = MODELS[number % len(MODELS)]
            stack.add_nodes([f"node-{number}"], model=model, memory=memory, links=links)
        plane.namespace("default")
        _greet(plane, stack)
        ended.wait()
        print("stopping …", flush=True)
    finally:
        stack.close()
        plane.stop()
    return 0


def _greet(plane: ControlPlane, stack: Stack) -> None:
    credentials = json.loads((stack.gpuplane.data / "credentials.json").read_text())
    lines = [
        f"export KUBECONFIG={plane.admin_kubeconfig}",
        f"kubectl is {program('kubectl')}",
        (
            f"gpuplane is at {credentials['url']}; sign in as {credentials['username']} with the password in"
            f" {stack.gpuplane.data / 'credentials.json'}"
        ),
        "pods with schedulerName: gpu-scheduler are placed by gpuplane; docs/operations.md has an example",
        f"logs are in {plane.folder} and {stack.gpuplane.folder}",
        "Ctrl-C stops everything",
    ]
    print("\n" + "\n".join(lines) + "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
