"""Scenario files from end to end: decisions, reasons, and the fleet after them."""

from pathlib import Path

import msgspec
import pytest

from allocations.scenario import parse_scenario, read_scenario, run_scenario

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
GI = 1 << 30


def run_file(name):
    return run_scenario(read_scenario((SCENARIOS / f"{name}.yaml").read_bytes()))


def placed(result):
    return {
        one.pod.removeprefix("default/"): (one.node, [(d.type, d.minor) for d in one.devices])
        for one in result.decisions
    }


def test_kai_2153():
    """VIEW-4 KAI #2153: 16 halves on 8 GPUs are exactly two per card."""
    result = run_file("kai-2153")
    minors = sorted(one.devices[0].minor for one in result.decisions)
    assert minors == sorted([*range(8)] * 2)
    assert {(one.core_used, one.memory_used) for one in result.fleet["n1"]} == {(100, 40 * GI)}


def test_kai_416():
    """VIEW-4 KAI #416: 23 placed, one pending with a reason."""
    result = run_file("kai-416")
    assert [one.node for one in result.decisions] == ["n1"] * 23 + [None]
    assert result.decisions[-1].reasons == {"n1": "no device with 2000 MiB memory free"}
    assert result.fleet["n1"][0].memory_used == 23 * 2000 * 1024**2


def test_koordinators_core_200():
    """DEV-3 Koordinator's own pods of core 200 with memory hang for ever; these are placed on two devices."""
    result = run_file("koordinator-core-200")
    (decision,) = result.decisions
    assert [(one.minor, one.core, one.memory) for one in decision.devices] == [(0, 100, 16 * GI), (1, 100, 16 * GI)]


def test_links_that_the_ends_count_differently():
    """CLAIM-5 go-gpuallocator: no panic, and the smaller number counts, so the pair with two links wins over that with
    six and one.
    """
    assert placed(run_file("asymmetric-links")) == {"pair": ("n1", [("gpu", 2), ("gpu", 3)])}


def test_sixteen_gpus_by_two():
    """CLAIM-5 go-gpuallocator: every pod gets a linked pair, and the ninth a reason."""
    result = run_file("sixteen-gpus-by-two")
    pairs = [tuple(one.minor for one in decision.devices) for decision in result.decisions]
    assert set(pairs[:8]) == {(0, 9), (1, 8), (2, 11), (3, 10), (4, 13), (5, 12), (6, 15), (7, 14)}
    assert result.decisions[8].reasons == {"n1": "fewer than 2 whole gpu devices free"}


def test_a_full_first_gpu_blocks_nobody():
    """Helix: what is free on GPUs 1 and 2 serves, whatever GPU 0 holds."""
    assert placed(run_file("full-first-gpu")) == {"model": ("n1", [("gpu", 1), ("gpu", 2)])}


def test_hamis_words():
    """DEV-2 VIEW-4 two containers have a device each, since one has no room for both; then a device of its own; reasons
    for all others.
    """
    result = run_file("hami")
    assert placed(result) == {
        "two-containers": ("n1", [("gpu", 0), ("gpu", 1)]),
        "alone": ("n1", [("gpu", 2)]),
        "beside": ("n1", [("gpu", 0)]),
        "not-there": (None, []),
        "one-numa": (None, []),
        "wrong": (None, []),
    }
    assert [one.reasons["n1"] for one in result.decisions[3:]] == [
        "no gpu that the pod's annotations allow",
        "fewer than 2 devices with 100 MiB memory free at one NUMA node",
        "nvidia.com/gpucores is for each device, so it is at most 100",
    ]


def test_init_containers_in_hamis_words():
    """DEV-2 VIEW-4 one after another in the same room, beside a sidecar not; what HAMi's slots tell of a running
    pod is the larger amount.
    """
    result = run_file("hami-init-containers")
    assert placed(result) == {
        "one-after-another": ("n1", [("gpu", 1)]),
        "beside-a-sidecar": ("n1", [("gpu", 2)]),
        "too-much-with-a-sidecar": (None, []),
        "the-same-one-after-another": ("n1", [("gpu", 0)]),
    }
    mib = 1024**2
    assert [(one.core_used, one.memory_used // mib) for one in result.fleet["n1"]] == [
        (100, 36000),
        (90, 36000),
        (100, 38000),
    ]
    assert result.decisions[2].reasons == {"n1": "no devices free that serve all containers"}


def test_joint_allocation():
    """DEV-10 VIEW-4 under the fewest switches, and a reason where a GPU and a NIC are left, but nowhere together."""
    result = run_file("joint")
    assert placed(result) == {
        "pair": ("n1", [("gpu", 1), ("gpu", 2), ("rdma", 1), ("rdma", 2)]),
        "one": ("n1", [("gpu", 0), ("rdma", 0)]),
        "late": (None, []),
    }
    assert result.decisions[2].reasons == {"n1": "no gpu and rdma devices free under the same PCIe switches"}


def test_preferred_joint_allocation():
    """DEV-10 VIEW-4 shares are packed where a NIC is beside them, and a NIC comes from under a chosen GPU's switch
    though another is fuller.
    """
    assert placed(run_file("joint_preferred")) == {
        "elsewhere": ("n1", [("rdma", 0)]),
        "first": ("n1", [("gpu", 2), ("rdma", 1)]),
        "second": ("n1", [("gpu", 2), ("rdma", 1)]),
        "three": ("n1", [("gpu", 0), ("gpu", 1), ("gpu", 3), ("rdma", 1)]),
    }


def test_contiguous_beats_fragmented():
    """CLAIM-5 one island on an emptier node beats two on a fuller one; policyStrict says why it cannot."""
    result = run_file("contiguous-beats-fragmented")
    assert placed(result)["training"] == ("whole", [("gpu", minor) for minor in range(4)])
    assert result.decisions[1].reasons == dict.fromkeys(("fragmented", "whole"), "no NVLink island of 8 gpu devices")


def test_a_lone_gpu_comes_from_a_broken_pair():
    assert placed(run_file("lone-gpu-from-broken-pair")) == {
        "lone": ("n1", [("gpu", 3)]),
        "pair": ("n1", [("gpu", 0), ("gpu", 1)]),
    }


def test_adoption():
    """LEASE-6 running pods are adopted from any dialect's annotation before the first decision."""
    result = run_file("adoption")
    assert placed(result) == {"team/new": ("n1", [("gpu", 2)]), "team/newer": (None, [])}
    assert {one.uuid: (one.core_used, one.memory_used) for one in result.fleet["n1"]} == {
        "GPU-0": (70, 15 * GI),
        "GPU-1": (100, 40 * GI),
        "GPU-2": (100, 40 * GI),
        "GPU-3": (0, 0),
        "mlx5_0": (50, None),
    }
    assert [problem.split(":")[0] for problem in result.problems] == [
        "default/unreadable",
        "default/elsewhere",
        "default/usurper",
    ]


def test_several_types():
    """DEV-3 GPU, RDMA and FPGA in one pod; a quantity of 0 is not asked."""
    result = run_file("several-types")
    assert placed(result) == {
        "trio": ("n1", [("gpu", 0), ("fpga", 0), ("rdma", 1)]),
        "fpga-half": ("n1", [("fpga", 0)]),
        "fpga-more": (None, []),
        "nothing": (None, []),
    }
    fpga = next(device for device in result.decisions[0].devices if device.type == "fpga")
    assert (fpga.core, fpga.memory) == (50, None)
    assert result.decisions[2].reasons == {"n1": "no fpga device with 10 core free", "n2": "no fpga devices"}


def test_the_answer_has_the_shape_of_the_contract():
    """VIEW-4 the result, key by key."""
    result = run_scenario(
        parse_scenario(
            {
                "nodes": [
                    {"name": "n1", "devices": [{"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}]},
                    {"name": "n2"},
                ],
                "pods": [
                    {
                        "metadata": {"name": "p", "namespace": "team"},
                        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]},
                    }
                ],
            }
        )
    )
    assert msgspec.json.decode(msgspec.json.encode(result)) == {
        "decisions": [
            {
                "pod": "team/p",
                "node": "n1",
                "devices": [{"uuid": "GPU-0", "minor": 0, "type": "gpu", "core": 100, "memory": 80 * GI}],
                "reasons": {"n2": "no gpu devices"},
                "summary": "n1: gpu 0",
            }
        ],
        "fleet": {"n1": [{"uuid": "GPU-0", "core_used": 100, "memory_used": 80 * GI}], "n2": []},
    }


@pytest.mark.parametrize(
    ("share", "want"),
    [pytest.param("gpupack", [0, 0], id="pack"), pytest.param("gpuspread", [0, 1], id="spread")],
)
def test_share_option(share, want):
    """SHARE-2 gpupack or gpuspread."""
    pod = {"spec": {"containers": [{"resources": {"limits": {"koordinator.sh/gpu": 50}}}]}}
    devices = [{"minor": at, "uuid": f"GPU-{at}", "model": "H100", "memory": "80Gi"} for at in range(2)]
    result = run_scenario(
        parse_scenario(
            {
                "nodes": [{"name": "n1", "devices": devices}],
                "pods": [{**pod, "metadata": {"name": name}} for name in "ab"],
                "options": {"share": share},
            }
        )
    )
    assert [one.devices[0].minor for one in result.decisions] == want


def test_a_refused_pod_has_its_reason_on_every_node():
    """DEV-3 core alone is refused with the rule."""
    result = run_scenario(
        parse_scenario(
            {
                "nodes": [{"name": "n1"}, {"name": "n2"}],
                "pods": [
                    {
                        "metadata": {"name": "p"},
                        "spec": {"containers": [{"resources": {"limits": {"koordinator.sh/gpu-core": 50}}}]},
                    }
                ],
            }
        )
    )
    (decision,) = result.decisions
    assert decision.node is None
    assert set(decision.reasons) == {"n1", "n2"}
    assert decision.summary.startswith("2 of 2 nodes: ")


def test_instances_of_a_gpu_that_is_held():
    """DEV-12 VIEW-4 a pod that has the GPU since before MIG mode keeps it, and nobody gets an instance of it."""
    gpu = {"model": "H100", "memory": "80Gi"}
    instance = {"model": "H100 MIG 1g.10gb", "memory": "9856Mi", "profile": "1g.10gb"}
    devices = [
        part
        for minor in (0, 1)
        for part in (
            gpu | {"minor": minor, "uuid": f"GPU-{minor}", "mig": True},
            instance | {"minor": 1000 + minor, "uuid": f"MIG-{minor}", "parent": f"GPU-{minor}"},
        )
    ]
    running = {
        "metadata": {"name": "runs", "annotations": {"gpu.scheduling/allocated": "n1:0"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
    }
    limits = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}
    waiting = [
        {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"} | limits]}} for name in ("one", "two")
    ]
    result = run_scenario(parse_scenario({"nodes": [{"name": "n1", "devices": devices}], "pods": [running, *waiting]}))
    assert [[device.uuid for device in one.devices] for one in result.decisions] == [["MIG-1"], []]


def test_mig_instances():
    """DEV-12 VIEW-4 what-if knows them: by their names alone, whole, and nothing of their GPU."""
    gpu = {"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}
    mig = {
        "minor": 1056,
        "uuid": "MIG-0",
        "model": "H100 MIG 1g.10gb",
        "memory": "9856Mi",
        "parent": "GPU-0",
        "profile": "1g.10gb",
    }

    def pod(name, resource):
        containers = [{"name": "main", "resources": {"limits": {resource: "1"}}}]
        return {"metadata": {"name": name}, "spec": {"containers": containers}}

    running = {
        "metadata": {"name": "runs", "annotations": {"gpu.scheduling/allocated": "n2:1056"}},
        "spec": {"nodeName": "n2", "containers": [{"name": "main"}]},
    }
    nodes = [
        {"name": "n1", "devices": [gpu, mig]},
        {"name": "n2", "devices": [{**gpu, "uuid": "GPU-1"}, {**mig, "uuid": "MIG-1", "parent": "GPU-1"}]},
    ]
    names = {
        "small": "nvidia.com/mig-1g.10gb",
        "next": "nvidia.com/mig-1g.10gb",
        "plain": "nvidia.com/gpu",
        "half": "koordinator.sh/gpu-memory-ratio",
    }
    result = run_scenario(
        parse_scenario({"nodes": nodes, "pods": [running, *(pod(name, resource) for name, resource in names.items())]})
    )
    assert result.problems == ()
    assert placed(result) == {
        "small": ("n1", [("gpu", 1056)]),
        "next": (None, []),
        "plain": (None, []),
        "half": (None, []),
    }
    reasons = {one.pod.removeprefix("default/"): set(one.reasons.values()) for one in result.decisions}
    assert reasons["next"] == {"no whole mig-1g.10gb device free"}
    assert reasons["plain"] == reasons["half"] == {"gpu devices are in MIG mode: only their instances are given"}
