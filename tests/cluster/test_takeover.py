"""A cluster with GPU pods of the stock scheduler goes over to gpuplane, step by step, by the very commands of
docs/takeover.md.
"""

import json
from collections.abc import Iterator

import pytest

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.heartbeat import Heartbeat
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import inventory, node, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import ALLOCATED, CHOSEN_BY, settled
from tests.cluster.test_webhooks import STOCK, stock_scheduler
from tests.cluster.truth import read
from tests.cluster.waiting import bound, minors, pods_of, said

GPU: dict[str, str | int] = {"nvidia.com/gpu": 1}
PLUGIN = {"gpu.scheduling/mode": "device-plugin"}
LEARNT_SECONDS = 40.0
"""A comparison with the cluster runs every 25 s."""


@pytest.fixture(scope="module")
def module_stack(plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane as it is installed beside another scheduler."""
    made = Stack(plane, plane.folder)
    try:
        made.install(scope="ours")
        made.start_gpuplane(vendor="postgresql", settings={"GPUPLANE_GUARD": "ours"})
        made.start_scheduler()
        yield made
    finally:
        made.close()


def missing(stack: Stack) -> set[str]:
    """The steps that do not hold, as the command says."""
    done = stack.gpuplane.manage("takeover", "--check", "--format", "json")
    assert done.returncode in {0, 1}, done.stderr
    steps = json.loads(done.stdout)
    assert all(one["holds"] for one in steps) == (done.returncode == 0)
    return {one["name"] for one in steps if not one["holds"]}


def held(stack: Stack) -> dict[str, list[int]]:
    """Pod → minors of its GPUs, by the ledger."""
    return {row.pod_name: sorted(grant.minor for grant in row.grants) for row in read(stack).allocations}


def env_of(stored: Json) -> set[str]:
    """Names of the variables of its first container."""
    return {one["name"] for one in stored["spec"]["containers"][0].get("env") or ()}


def uid(stored: Json) -> str:
    """Of an object."""
    return str(stored["metadata"]["uid"])


def test_a_live_cluster_goes_over(stack: Stack, namespace: str) -> None:
    """DEV-8 DEV-9 DEV-11 running pods keep what their kubelet gave them, new ones go to gpuplane, no GPU is given
    twice; each step is checked.
    """
    stack.api.create("/api/v1/nodes", node("old", native=4, labels=PLUGIN))
    theirs = [pod(f"theirs-{number}", namespace, resources=GPU, scheduler=STOCK) for number in range(2)]
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        with stock_scheduler(stack):
            stack.add_pods(theirs)
            seen.until(bound("theirs-0", "theirs-1"), seconds=20, what="the stock scheduler goes on as before")
            assert env_of(pods_of(seen)["theirs-0"]) == set()
        assert missing(stack) == {"nodes", "pods", "namespaces", "placed", "guard"}

        agent = Heartbeat(stack, {**inventory("old", gpus=4), "mode": "device-plugin"})
        with agent.beating():
            first = {uid(pods_of(seen)["theirs-0"]): [2], uid(pods_of(seen)["theirs-1"]): [0]}
            agent.kubelet_gave(first)
            eventually(
                lambda: held(stack) == {"theirs-0": [2], "theirs-1": [0]},
                seconds=LEARNT_SECONDS,
                what="the pods that ran before gpuplane in the ledger, with the kubelet's devices",
            )
            stack.add_pods([pod("late", namespace, resources=GPU, scheduler="hami-scheduler")])
            assert missing(stack) == {"pending", "namespaces", "placed", "guard"}
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/late", grace_seconds=0)

            stack.api.kubectl("label", "namespace", namespace, "gpu.scheduling/takeover=enabled")
            assert missing(stack) == {"placed", "guard"}
            stack.add_pods([pod("new", namespace, resources=GPU, scheduler=STOCK, nodeSelector=PLUGIN)])
            seen.until(bound("new"), seconds=20, what="a pod written for the stock scheduler placed by gpuplane")
            stored = pods_of(seen)["new"]
            assert stored["spec"]["schedulerName"] == "gpu-scheduler"
            assert env_of(stored) == set()
            assert stored["metadata"]["annotations"][CHOSEN_BY] == "kubelet"
            assert ALLOCATED not in stored["metadata"]["annotations"]
            assert held(stack)["new"] == [1]
            agent.kubelet_gave({**first, uid(stored): [3]})
            eventually(
                lambda: held(stack) == {"theirs-0": [2], "theirs-1": [0], "new": [3]},
                seconds=LEARNT_SECONDS,
                what="the kubelet's choice in the ledger",
            )
            settled(stack)
            assert missing(stack) == {"guard"}

            stack.install()
            stack.gpuplane.configure(GPUPLANE_GUARD="everywhere")
            stack.gpuplane.web.stop()
            stack.gpuplane.web.start()
            assert missing(stack) == set()


def test_who_is_taken_over_and_who_is_not(stack: Stack, namespace: str) -> None:
    """DEV-11 in a labelled namespace every way of asking goes to gpuplane, but a pod that says no; without a label the
    guard sees only what is meant for us.
    """
    stack.install(scope="ours")
    stack.gpuplane.configure(GPUPLANE_GUARD="ours")
    stack.gpuplane.web.stop()
    stack.gpuplane.web.start()
    stack.add_nodes(["fresh"], gpus=4)
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.add_pods([pod("before", namespace, resources=GPU, scheduler="hami-scheduler")])
        assert pods_of(seen).get("before", {}).get("spec", {}).get("nodeName") is None
        stack.api.kubectl("label", "namespace", namespace, "gpu.scheduling/takeover=enabled")
        words: dict[str, Json] = {
            "native": {"resources": GPU},
            "hami": {"resources": {"nvidia.com/gpumem": 1000}},
            "kai": {"annotations": {"gpu-fraction": "0.5"}},
            "koordinator": {"resources": {"koordinator.sh/gpu": 50}},
        }
        stack.add_pods([pod(name, namespace, scheduler=f"{name}-scheduler", **asked) for name, asked in words.items()])
        stays = pod("stays", namespace, resources=GPU, scheduler="hami-scheduler")
        stays["metadata"]["labels"]["gpu.scheduling/takeover"] = "disabled"
        stack.api.apply(stays)
        seen.until(bound(*words), seconds=20, what="pods of every dialect placed by gpuplane")
        for name in words:
            stored = pods_of(seen)[name]
            assert stored["spec"]["schedulerName"] == "gpu-scheduler", name
            assert {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} <= env_of(stored), name
            assert minors(stored), name
        by_hand = pod("by-hand", namespace, resources=GPU, scheduler="default-scheduler", nodeName="fresh")
        refused = stack.api.kubectl("apply", "-f", "-", given=json.dumps(by_hand), refused=True)
        assert "spec.nodeName: only gpuplane places pods that ask for devices" in refused
        left = pods_of(seen)["stays"]
        assert left["spec"]["schedulerName"] == "hami-scheduler"
        assert env_of(left) == set()
        assert pods_of(seen)["before"]["spec"]["schedulerName"] == "hami-scheduler"
        assert said(left) == ""
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/stays", grace_seconds=0)
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/before", grace_seconds=0)
        settled(stack)
