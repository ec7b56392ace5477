"""The main job on a real cluster: claims and resource requests become Bindings, Leases and annotations, and come back
(issues' 1 to 5).
"""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.objects import all_linked, claim, pod, two_islands
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.moments import bound_moments, end_heard, ended_moments, rested_at
from tests.cluster.waiting import bound, count_bound, gone, minors, pods_of, said, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)

ALLOCATED = "gpu.scheduling/allocated"
VISIBLE = "gpu.scheduling/visible-devices"


def watching(stack: Stack, namespace: str) -> Observer:
    """An observer of the namespace's pods."""
    return Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods")


def test_a_claim_and_its_pod_by_kubectl(stack: Stack, namespace: str) -> None:
    """CLAIM-1 CLAIM-2 CLAIM-6 CLAIM-7 LEASE-1 LEASE-4 kubectl apply of claim and pod ends in a Binding that carries
    everything.
    """
    stack.add_nodes(["way-1", "way-2"])
    with watching(stack, namespace).watching() as seen:
        stack.api.apply(
            claim("two", namespace, devices={"count": 2, "policy": "contiguous"}),
            pod("train", namespace, claimed="two", containers=2, initContainers=[{"name": "first", "image": "i"}]),
        )
        seen.until(bound("train"), seconds=10, what="the pod bound")
        versions = seen.named("train")
    first = next(one for one in versions if one["spec"].get("nodeName"))
    node = first["spec"]["nodeName"]
    given = minors(first)
    assert len(given) == 2
    uuids = first["metadata"]["annotations"][VISIBLE].split(",")
    assert uuids == [f"GPU-{node}-{minor}" for minor in given]
    assert all(
        ALLOCATED not in (one["metadata"].get("annotations") or {})
        for one in versions
        if not one["spec"].get("nodeName")
    )
    for container in (*first["spec"]["containers"], *first["spec"]["initContainers"]):
        env = {one["name"]: one for one in container["env"]}
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            assert env[name]["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{VISIBLE}']"
    listed = stack.api.kubectl("get", "leases", "-n", "gpuplane-system", "-o", "name").split()
    assert {f"lease.coordination.k8s.io/gpu-{node}-{minor}" for minor in given} <= set(listed)
    lease = stack.leases()[f"gpu-{node}-{given[0]}"]
    assert lease["spec"]["holderIdentity"] == f"{namespace}/train/{first['metadata']['uid']}"
    settled(stack)

    def columns() -> bool:
        printed = [line.split() for line in stack.api.kubectl("get", "gpuclaims", "-n", namespace).splitlines()]
        row = dict(zip(printed[0], printed[1], strict=False))
        return (
            row["NAME"] == "two"
            and row.get("PHASE") == "Allocated"
            and row.get("COUNT") == "2"
            and row.get("POLICY") == "contiguous"
            and row.get("ALLOCATED") == "1"
        )

    eventually(columns, seconds=10, what=f"columns right: {stack.api.kubectl('get', 'gpuclaims', '-n', namespace)}")
    stack.api.kubectl("delete", "pod", "train", "-n", namespace)
    eventually(lambda: not stack.leases(), seconds=5, what="the leases gone")


def test_text_that_a_database_may_not_take(stack: Stack, namespace: str) -> None:
    """VIEW-3 the API server lets NUL into an annotation: the pod waits with a reason, and other pods are told
    of too.
    """
    stack.add_nodes(["full"], gpus=1)
    share = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
    odd = pod("odd", namespace, resources=share)
    odd["metadata"].setdefault("annotations", {})["nvidia.com/use-gputype"] = "none\x00such"
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([odd, pod("large", namespace, resources={"nvidia.com/gpu": 2})])
        seen.until(unschedulable("odd", "large"), seconds=30, what="both wait")
        assert "\x00" in pods_of(seen)["odd"]["metadata"]["annotations"]["nvidia.com/use-gputype"]

    def told() -> set[str]:
        waiting = stack.gpuplane.rest.get("/api/v1/pods/?page_size=100").json()["results"]
        return {one["pod"] for one in waiting if one["namespace"] == namespace}

    eventually(lambda: told() == {"odd", "large"}, seconds=30, what="a row of each")


def test_eight_hundred_pods_at_once_take_every_gpu_once(stack: Stack, namespace: str) -> None:
    """LEASE-2 SCALE-7 800 one-GPU pods on 100 × 8 GPUs; the 801st waits with a reason and gets the GPU that comes free.

    It asks by a claim, of which kube-scheduler's own counting knows nothing: nobody but gpuplane can refuse it.
    """
    stack.add_nodes([f"burst-{number}" for number in range(100)])
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"one-{number}", namespace, resources={"nvidia.com/gpu": 1}) for number in range(800)])
        seen.until(count_bound(800), seconds=120, what="800 pods bound")
        taken = Counter(one["metadata"]["annotations"][ALLOCATED] for one in seen.now.values())
        assert len(taken) == 800
        assert set(taken.values()) == {1}
        settled(stack)
        stack.add_pods([pod("late", namespace, claimed="one")])
        seen.until(unschedulable("late"), seconds=10, what="the 801st pod Unschedulable")
        assert "100 no whole gpu device free" in said(pods_of(seen)["late"])
        assert "Insufficient" not in said(pods_of(seen)["late"])

        def events() -> str:
            return stack.api.kubectl("get", "events", "-n", namespace, "--field-selector", "involvedObject.name=late")

        eventually(
            lambda: "FailedScheduling" in events(), seconds=10, what="kube-scheduler's event, which it sends late"
        )
        assert "0/100 nodes are available" in events()
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/one-17", grace_seconds=0)
        seen.until(bound("late"), seconds=15, what="the waiting pod bound to the GPU that came free")


def test_sixteen_halves_make_two_on_each_of_eight(stack: Stack, namespace: str) -> None:
    """DEV-2 16 pods of half a GPU fill 8 GPUs with exactly two each, whether they say it by resources or in KAI's
    words.
    """
    stack.add_nodes(["halves"])
    with watching(stack, namespace).watching() as seen:
        words: list[dict[str, Any]] = [
            {"resources": {"kubernetes.io/gpu": 50}},
            {"annotations": {"gpu-fraction": "0.5"}},
        ]
        stack.add_pods([pod(f"half-{number}", namespace, **words[number % 2]) for number in range(16)])
        seen.until(count_bound(16), seconds=30, what="16 pods bound")
        held = Counter(minors(one)[0] for one in seen.now.values())
    assert held == dict.fromkeys(range(8), 2)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(
            {"resources": {"kubernetes.io/gpu-memory": "2000Mi"}},
            "1 Insufficient kubernetes.io/gpu-memory",
            id="resources",
        ),
        pytest.param({"annotations": {"gpu-memory": "2000"}}, "1 no device with 2000 MiB memory free", id="KAI"),
    ],
)
def test_as_many_shares_of_memory_as_the_card_has(
    stack: Stack, namespace: str, words: dict[str, Any], reason: str
) -> None:
    """DEV-2 24 pods of 2,000 MiB on one card of 46,068 MiB: 23 run, one waits with a reason."""
    stack.add_nodes(["card"], gpus=1, model="L40S", memory="46068Mi")
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"part-{number}", namespace, **words) for number in range(24)])
        seen.until(count_bound(23), seconds=30, what="23 pods bound")
        waiting = [name for name, one in pods_of(seen).items() if not one["spec"].get("nodeName")]
        assert len(waiting) == 1
        seen.until(unschedulable(*waiting), seconds=10, what="the last one Unschedulable")
        assert reason in said(pods_of(seen)[waiting[0]])


def test_contiguous_takes_the_whole_island(stack: Stack, namespace: str) -> None:
    """CLAIM-4 CLAIM-5 of two islands of four, one of them broken into, the whole one wins; between nodes too."""
    stack.add_nodes(["island-1"], links=two_islands())
    with watching(stack, namespace).watching() as seen:
        stack.api.apply(
            claim("one", namespace),
            claim("four", namespace, devices={"count": 4, "policy": "contiguous"}),
            pod("breaks", namespace, claimed="one"),
        )
        seen.until(bound("breaks"), seconds=10, what="the first pod bound")
        broken = minors(pods_of(seen)["breaks"])[0] // 4
        stack.add_pods([pod("whole", namespace, claimed="four")])
        seen.until(bound("whole"), seconds=10, what="four of an island bound")
        assert {minor // 4 for minor in minors(pods_of(seen)["whole"])} == {1 - broken}
        # Three of the broken island are left here; the other node has a whole one.
        stack.add_nodes(["island-2"], links=two_islands())
        stack.add_nodes(["island-0"], links=all_linked(3), gpus=8)
        stack.add_pods([pod("elsewhere", namespace, claimed="four")])
        seen.until(bound("elsewhere"), seconds=10, what="four of the other node bound")
        found = pods_of(seen)["elsewhere"]
        assert found["spec"]["nodeName"] == "island-2"
        assert len({minor // 4 for minor in minors(found)}) == 1


def test_a_claim_made_later_wakes_its_pods(stack: Stack, namespace: str) -> None:
    """CLAIM-3 pods of a missing claim wait with a reason, and are bound within 2 s of the making of the claim.

    That is gpuplane's part: kube-scheduler's own back-off of a pod that was refused is over by then.
    """
    stack.add_nodes(["wakes"])

    def rested(uid: str) -> bool:
        over = rested_at(stack.gpuplane, uid)
        return over is not None and datetime.now(UTC) > over

    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"early-{number}", namespace, claimed="later") for number in range(3)])
        seen.until(
            unschedulable("early-0", "early-1", "early-2", saying="later"),
            seconds=10,
            what="a reason that names the claim",
        )
        uids = {one["metadata"]["uid"] for one in pods_of(seen).values()}
        eventually(lambda: all(map(rested, uids)), seconds=20, what="kube-scheduler free to ask again at any moment")
        asked = datetime.now(UTC)
        stack.api.create(f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims", claim("later", namespace))
        seen.until(bound("early-0", "early-1", "early-2"), seconds=30, what="the pods bound")
    settled(stack)
    took = {uid: (bound_moments(stack.gpuplane)[uid] - asked).total_seconds() for uid in uids}
    assert max(took.values()) <= 2.0, took


def test_devices_of_pods_that_end_are_back_at_once(stack: Stack, namespace: str) -> None:
    """LEASE-4 deleted, finished or replaced: the ledger has their devices back within 2 s of the watch's event."""
    stack.add_nodes(["ends"], gpus=4)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    gpu = {"nvidia.com/gpu": 1}
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(name, namespace, resources=gpu) for name in ("deleted", "finished", "replaced", "stays")])
        seen.until(count_bound(4), seconds=20, what="four pods bound")
        settled(stack)  # the ledger has written every bind to its end
        before = pods_of(seen)
        stack.api.delete(f"{pods}/deleted", grace_seconds=0)
        stack.api.patch(f"{pods}/finished/status", {"status": {"phase": "Succeeded"}})
        stack.api.delete(f"{pods}/replaced", grace_seconds=0)
        stack.add_pods([pod("replaced", namespace, resources=gpu)])
        seen.until(bound("replaced"), seconds=20, what="the pod that replaces another bound")
        settled(stack)
        back = ended_moments(stack.gpuplane)
        assert before["stays"]["metadata"]["uid"] not in back
        took = {
            name: (back[before[name]["metadata"]["uid"]] - end_heard(seen, before[name])).total_seconds()
            for name in ("deleted", "finished", "replaced")
        }
    assert max(took.values()) <= 2.0, took


def test_a_malformed_claim_is_refused_and_its_pod_waits(stack: Stack, namespace: str) -> None:
    """CLAIM-3 the API server refuses a malformed claim with the rule; its pod waits with a reason; corrected, it is
    bound.
    """
    stack.add_nodes(["malformed"])
    for broken, rule in (
        ({"devices": {"count": 0}}, "count"),
        ({"devices": {"count": 1, "core": 101}}, "core"),
        ({"devices": {"count": 1, "memory": "much"}}, "memory"),
        ({"devices": {"count": 1, "policy": "best"}}, "policy"),
    ):
        body = claim("odd", namespace)
        body["spec"] = broken
        path = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims"
        answer = stack.api.http.post(path, json=body)
        assert answer.status_code == 422, answer.text
        assert rule in answer.json()["message"]
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod("waits", namespace, claimed="odd")])
        seen.until(unschedulable("waits", saying="odd"), seconds=10, what="the pod waits")
        stack.api.apply(claim("odd", namespace))
        seen.until(bound("waits"), seconds=20, what="the pod bound after the claim was corrected")


def test_a_pod_made_again_under_the_same_name(stack: Stack, namespace: str) -> None:
    """LEASE-4 the new pod of an old name gets devices of its own, and those of the old one come back."""
    stack.add_nodes(["again"], gpus=1)
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod("same", namespace, resources={"nvidia.com/gpu": 1})])
        seen.until(bound("same"), seconds=10, what="the first bound")
        before = pods_of(seen)["same"]["metadata"]["uid"]
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/same", grace_seconds=0)
        seen.until(gone(["same"]), seconds=10, what="the first gone")
        stack.add_pods([pod("same", namespace, resources={"nvidia.com/gpu": 1})])
        seen.until(bound("same"), seconds=20, what="the second bound")
        after = pods_of(seen)["same"]["metadata"]["uid"]
    assert before != after
    truth = settled(stack)
    assert [lease.holder for lease in truth.leases.values()] == [f"{namespace}/same/{after}"]
