"""What trigger pods ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from autoscaling.models import Pool
from autoscaling.triggers import Need, manifest
from kube.objects import Pod


def container(cpu: str, *, sidecar: bool = False) -> dict[str, Any]:
    """A container, or an init container."""
    made: dict[str, Any] = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return made | ({"restartPolicy": "Always"} if sidecar else {})


def requests_for(*specs: dict[str, Any]) -> dict[str, str]:
    """What a trigger pod for these pods requests."""
    listed = [
        {"metadata": {"name": f"p-{number}", "namespace": "team"}, "spec": spec} for number, spec in enumerate(specs)
    ]
    made = manifest(
        name="t",
        namespace="gpuplane-system",
        image="pause",
        pool=Pool(name="a", changed_at=datetime(2026, 1, 1, tzinfo=UTC)),
        model="H100",
        need=Need({}, (), ("gpu",)),
        gpus=1,
        pods=[msgspec.convert(one, Pod) for one in listed],
        original={},
    )
    (only,) = made["spec"]["containers"]
    assert only["resources"]["limits"] == only["resources"]["requests"]
    requests: dict[str, str] = only["resources"]["requests"]
    return requests


@pytest.mark.parametrize(
    ("spec", "want_cpu", "want_memory"),
    [
        pytest.param({"containers": [container("1"), container("2")]}, "3000m", "2Gi", id="containers"),
        pytest.param(
            {"initContainers": [container("4")], "containers": [container("1")]}, "4000m", "1Gi", id="an init container"
        ),
        pytest.param(
            {"initContainers": [container("1", sidecar=True), container("4")], "containers": [container("1")]},
            "5000m",
            "2Gi",
            id="an init container beside a sidecar",
        ),
        pytest.param(
            {"initContainers": [container("4"), container("1", sidecar=True)], "containers": [container("1")]},
            "4000m",
            "2Gi",
            id="an init container before a sidecar",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "6"}}, "containers": [container("1")]}, "6000m", "1Gi", id="of the pod"
        ),
        pytest.param(
            {"overhead": {"cpu": "250m", "memory": "1Gi"}, "containers": [container("1")]},
            "1250m",
            "2Gi",
            id="overhead of its runtime class",
        ),
    ],
)
def test_as_much_as_the_scheduler_counts(spec: dict[str, Any], want_cpu: str, want_memory: str) -> None:
    """SCALE-2 with less a node may be made that the pod does not fit on."""
    assert requests_for(spec) == {"nvidia.com/gpu": "1", "cpu": want_cpu, "memory": want_memory}


def test_disks_of_nodes_are_large_enough() -> None:
    """SCALE-2 ephemeral storage of all pods of the node: Karpenter chooses the instance type, and its disk, by it."""
    stated = {"requests": {"ephemeral-storage": "100Gi"}, "limits": {"ephemeral-storage": "200Gi"}}
    of_limit = {"limits": {"ephemeral-storage": "50Gi"}}
    specs = [{"containers": [{"name": "c", "resources": resources}]} for resources in (stated, of_limit)]
    assert requests_for(*specs) == {"nvidia.com/gpu": "1", "cpu": "100m", "ephemeral-storage": "150Gi"}
