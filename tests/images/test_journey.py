"""The main journey on the images, as the chart starts them, on a real Kubernetes beside kube-scheduler: a GPU pod is
created, scheduled and bound, and its devices are free when it ends.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.keys import ALLOCATED
from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import node, pod
from tests.cluster.controlplane.stack import LEADER, LEASES, eventually
from tests.cluster.controlplane.tools import found
from tests.cluster.waiting import bound, minors, pods_of
from tests.images.release import Release
from tests.images.tools import Image

NODE = "with-images"
TEAM = "team"
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "helm")


@pytest.fixture
def release(images: dict[str, Image]) -> Iterator[Release]:
    """Installed, with one node of eight GPUs that only its agent speaks of."""
    if missing := [name for name in NEEDED if found(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: `make cluster-tools` builds them")
    folder = Path(tempfile.mkdtemp(prefix="gpuplane-images-"))
    plane = ControlPlane(folder)
    try:
        plane.start()
        plane.namespace(TEAM)
        plane.api.create("/api/v1/nodes", node(NODE))
        made = Release(plane, images, folder, node=NODE)
        try:
            made.install()
            yield made
        finally:
            print(made.logs())
            made.close()
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)


def leases(release: Release) -> set[str]:
    """Those of devices."""
    return {one["metadata"]["name"] for one in release.plane.api.items(LEASES)} - {LEADER}


def advertised(release: Release) -> bool:
    """Whether kube-scheduler sees the node's GPUs."""
    return "kubernetes.io/gpu" in release.plane.api.get(f"/api/v1/nodes/{NODE}")["status"].get("allocatable", {})


def user(pid: int) -> str:
    """Whose process it is."""
    return Path(f"/proc/{pid}/status").read_text().partition("\nUid:\t")[2].split()[0]


def test_the_main_journey(release: Release) -> None:
    """CLAIM-6 LEASE-1 LEASE-4 NODE-1 from the agent's word to a bound pod, its end, and the next pod on its GPUs."""
    api, pods = release.plane.api, f"/api/v1/namespaces/{TEAM}/pods"
    users = {one.name: user(one.pid) for one in release.programs}
    assert users == {**dict.fromkeys(("web", "worker", "watch", "beat"), "10001"), "agent": "0"}
    eventually(lambda: advertised(release), seconds=60, what="the GPUs of which the agent told, advertised")
    with Observer(api, pods).watching() as seen:
        api.create(pods, pod("first", TEAM, resources={"nvidia.com/gpu": 8}))
        seen.until(bound("first"), seconds=60, what="the pod bound")
        first = pods_of(seen)["first"]
        assert first["metadata"]["annotations"][ALLOCATED].startswith(f"{NODE}:")
        assert minors(first) == list(range(8))
        held = {f"gpu-{NODE}-{minor}" for minor in range(8)}
        assert leases(release) == held
        ended = json.dumps({"status": {"phase": "Succeeded"}})
        words = ("patch", "pod", "first", f"--namespace={TEAM}", "--subresource=status", "--type=merge", "-p", ended)
        api.kubectl(*words)
        eventually(lambda: not leases(release), seconds=30, what="the Leases of the pod that ended gone")
        api.create(pods, pod("second", TEAM, resources={"nvidia.com/gpu": 8}))
        seen.until(bound("second"), seconds=60, what="the next pod on the same GPUs")
    assert leases(release) == held
    assert all(one.alive for one in release.programs)
    assert "Warning" not in release.logs()
