"""`manage.py simulate` for nodes in mode device-plugin: who shares GPUs there by reservation pods, in every dialect,
and what is refused because the kubelet chooses.
"""

from __future__ import annotations

from typing import Any

import pytest

from allocations.engine.reasons import GPUS_ALONE, KUBELET_CHOOSES
from allocations.scenario import Result, parse_scenario, run_scenario

GIB = 2**30
Manifest = dict[str, Any]
Given = list[tuple[int, int, int]]
"""(minor, core, GiB) of each device."""
STRICT = {"policy": "contiguous", "policyStrict": True}


def node(name: str = "plugin", gpus: int = 4, *, nics: int = 0) -> Manifest:
    devices: list[Manifest] = [
        {"minor": at, "uuid": f"GPU-{name}-{at}", "model": "H100", "memory": "80Gi", "numa": at // 2, "pcie": f"p{at}"}
        for at in range(gpus)
    ]
    devices += [{"minor": at, "type": "rdma", "uuid": f"NIC-{name}-{at}", "pcie": f"p{at}"} for at in range(nics)]
    return {"name": name, "mode": "device-plugin", "devices": devices}


def pod(name: str = "p", limits: Manifest | None = None, **annotations: str) -> Manifest:
    given = {key.replace("_", "-"): value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "annotations": given},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits or {}}}]},
    }


def claimed(**devices: Any) -> Manifest:
    """A pod and its claim."""
    claim = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "c"}}
    asking = pod()
    asking["metadata"]["annotations"] = {"gpu.scheduling/claim": "c"}
    return {"pods": [asking], "claims": [{**claim, "spec": {"devices": devices}}]}


def by_names(**limits: Any) -> Manifest:
    """A pod that asks by resource names of HAMi, Koordinator or NVIDIA."""
    vendors = {"hami": "nvidia.com", "koordinator": "koordinator.sh"}
    named = {}
    for key, amount in limits.items():
        vendor, _, name = key.partition("_")
        named[f"{vendors[vendor]}/{name.replace('_', '-')}"] = str(amount)
    return {"pods": [pod(limits=named)]}


def chosen(asking: Manifest, uuid: str) -> Manifest:
    """The pod, for this GPU alone."""
    asking["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] = uuid
    return asking


def run(nodes: list[Manifest] | None = None, **scenario: Any) -> Result:
    return run_scenario(parse_scenario({"nodes": nodes or [node()], **scenario}))


def given(result: Result) -> dict[str, Given]:
    """Pod → its devices; those that wait have none."""
    return {
        one.pod.removeprefix("default/"): [(dev.minor, dev.core, (dev.memory or 0) // GIB) for dev in one.devices]
        for one in result.decisions
    }


def halves(count: int) -> list[Manifest]:
    return [pod(f"p{number}", gpu_fraction="0.5") for number in range(count)]


@pytest.mark.parametrize(
    ("scenario", "want"),
    [
        pytest.param({"pods": [pod(gpu_fraction="0.5")]}, [(0, 50, 40)], id="KAI: half a GPU"),
        pytest.param({"pods": [pod(gpu_memory="20480")]}, [(0, 0, 20)], id="KAI: memory"),
        pytest.param(
            {"pods": [pod(gpu_fraction="0.25", gpu_fraction_num_devices="2")]},
            [(0, 25, 20), (1, 25, 20)],
            id="KAI: several devices",
        ),
        pytest.param(by_names(hami_gpumem=20480, hami_gpucores=30), [(0, 30, 20)], id="HAMi: memory and cores"),
        pytest.param(by_names(hami_gpu=2, hami_gpumem=20480), [(0, 0, 20), (1, 0, 20)], id="HAMi: several devices"),
        pytest.param(
            by_names(koordinator_gpu_core=50, koordinator_gpu_memory_ratio=50), [(0, 50, 40)], id="Koordinator: a share"
        ),
        pytest.param(by_names(koordinator_gpu=200), [(0, 100, 80), (1, 100, 80)], id="Koordinator: whole devices"),
        pytest.param(claimed(count=1, core=50, memoryRatio=50), [(0, 50, 40)], id="GpuClaim: a share"),
        pytest.param(
            claimed(count=2, core=50, memoryRatio=50), [(0, 50, 40), (1, 50, 40)], id="GpuClaim: several shares"
        ),
        pytest.param(claimed(count=3), [(0, 100, 80), (1, 100, 80), (2, 100, 80)], id="GpuClaim: whole devices"),
        pytest.param(claimed(count=2, policy="contiguous"), [(0, 100, 80), (1, 100, 80)], id="a policy that may fail"),
        pytest.param({"pods": [pod(limits={"nvidia.com/gpu": "1"})]}, [(0, 100, 80)], id="nvidia.com/gpu"),
    ],
)
def test_what_is_placed(scenario: Manifest, want: Given) -> None:
    """SHARE-1 SHARE-2 SHARE-3 every dialect is placed there as on nodes in mode exclusive."""
    assert given(run(**scenario)) == {"p": want}


@pytest.mark.parametrize(
    ("scenario", "want_reason"),
    [
        pytest.param(claimed(count=2, **STRICT), KUBELET_CHOOSES, id="policyStrict"),
        pytest.param(
            {"pods": [chosen(pod(limits={"nvidia.com/gpumem": "3000"}), "GPU-plugin-0")]},
            KUBELET_CHOOSES,
            id="a GPU by its UUID",
        ),
        pytest.param(claimed(count=1, type="rdma", core=20), GPUS_ALONE, id="a device that is no GPU"),
    ],
)
def test_what_is_refused(scenario: Manifest, want_reason: str) -> None:
    """SHARE-3 what the kubelet's choice could not satisfy is refused on such nodes, with the reason."""
    (decision,) = run([node(nics=2)], **scenario).decisions
    assert (decision.node, decision.reasons) == (None, {"plugin": want_reason})


@pytest.mark.parametrize(
    ("share", "pods", "want"),
    [
        pytest.param("gpupack", halves(3), {"p0": 0, "p1": 0, "p2": 1}, id="gpupack fills a group first"),
        pytest.param("gpuspread", halves(3), {"p0": 0, "p1": 1, "p2": 2}, id="gpuspread begins groups first"),
        pytest.param("gpuspread", halves(5), {"p0": 0, "p1": 1, "p2": 2, "p3": 3, "p4": 0}, id="and joins then"),
    ],
)
def test_where_shares_go(share: str, pods: list[Manifest], want: dict[str, int]) -> None:
    """SHARE-2 a share joins the fullest group that has room, or by gpuspread the emptiest GPU."""
    placed = given(run(pods=pods, options={"share": share}))
    assert {name: devices[0][0] for name, devices in placed.items()} == want


def test_shares_and_plain_pods_fill_a_node() -> None:
    """SHARE-1 SHARE-2 groups and pods by `nvidia.com/gpu` never have more GPUs than there are; the node takes no more
    of either then, and room in a group takes shares still.
    """
    plain = [pod(f"plain-{number}", limits={"nvidia.com/gpu": "1"}) for number in range(3)]
    result = run(pods=[*halves(3), *plain, pod("joins", gpu_fraction="0.5"), pod("late", gpu_fraction="0.1")])
    placed = given(result)
    assert [name for name, devices in placed.items() if not devices] == ["plain-2", "late"]
    assert placed["joins"] == placed["p2"]
    assert [used.core_used for used in result.fleet["plugin"]] == [100] * 4
