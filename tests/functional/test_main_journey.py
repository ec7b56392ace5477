"""The main journey over HTTP alone: a GPU pod is admitted, placed, locked, bound, shown, and given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest

from access.choices import Role, TokenScope
from allocations.backends import current_backends
from allocations.reconcile.garbage_collection import collect_garbage
from allocations.scheduling.expired_holds import expire_holds
from kube.keys import VISIBLE_DEVICES
from storage.clock import database_now
from tests.functional.cluster_client import MI, ClusterClient, cluster_client, patch_of, pod_shape
from tests.ledger_truth import problems
from tests.servers.web import LiveApp
from tests.unit.claims.admission.reviews import patched

WHOLE = (100, 80 << 30)
FREE = (0, 0)


@pytest.fixture(scope="module")
def client(live_app: LiveApp) -> Iterator[ClusterClient]:
    with cluster_client(live_app) as client:
        yield client


@pytest.fixture(autouse=True)
def _whole(live_app: LiveApp) -> Iterator[None]:
    yield
    assert problems() == []


def test_a_pod_from_admission_to_its_end(client: ClusterClient) -> None:
    """CLAIM-2 CLAIM-4 CLAIM-7 LEASE-1 VIEW-3 the whole way of a pod with a claim for two GPUs."""
    client.register("way-a", gpus=4)
    client.register("way-b", gpus=1)
    client.claim("train", devices={"count": 2, "policy": "contiguous"})
    pod = pod_shape("way-1", claim="train")

    admitted = client.review("/webhooks/pods/mutate", pod)
    pod = patched(pod, type("Response", (), {"patch": admitted["patch"]}))
    reference = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE_DEVICES}']"}}
    for container in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            env = [entry for entry in container["env"] if entry["name"] == name]
            assert env == [{"name": name, "valueFrom": reference}], container["name"]
    assert patch_of(client.review("/webhooks/pods/mutate", pod)) == [], "reinvocation changes nothing"
    assert client.review("/webhooks/pods/validate", pod)["allowed"]

    names = ["way-a", "way-b"]
    answer = client.filter(pod, names)
    assert answer["NodeNames"] == ["way-a"]
    assert answer["FailedAndUnresolvableNodes"] == {"way-b": "fewer than 2 gpu devices"}
    assert client.filter(pod, names) == answer, "the same question twice gets the same answer"
    assert client.prioritize(pod, ["way-a"]) == {"way-a": 10}
    assert client.bind(pod, "way-a") == ""
    assert client.bind(pod, "way-a") == "", "the same bind twice is one bind"
    assert client.filter(pod, names)["NodeNames"] == ["way-a"]

    minors = client.minors(pod)
    assert len(minors) == 2
    leases = client.leases("way-a")
    assert sorted(leases) == [f"gpu-way-a-{minor}" for minor in minors]
    assert {lease["holder_identity"] for lease in leases.values()} == {"research/way-1/11111111-2222-way-1"}
    told = client.rest("GET", "pods/research/way-1/explain/")
    assert (told["state"], told["node"]) == ("bound", "way-a")
    assert [device["uuid"] for device in told["devices"]] == [f"GPU-way-a-{minor}" for minor in minors]
    assert client.rest("GET", "claims/research/train/")["status"]["allocated"] == 1

    second = pod_shape("way-2", claim="train")
    client.run(second, names)
    status = client.rest("GET", "claims/research/train/")["status"]
    assert status["allocated"] == 2
    assert {entry["pod"] for entry in status["allocations"]} == {"way-1", "way-2"}
    failed, never = client.refusal(pod_shape("way-3", claim="train"), names)
    assert failed == {"way-a": "fewer than 2 whole gpu devices free"}
    assert never == {"way-b": "fewer than 2 gpu devices"}
    waiting = client.rest("GET", "pods/research/way-3/explain/")
    assert waiting["state"] == "pending"
    assert ("way-a", "fewer than 2 whole gpu devices free", True) in [
        (told["node"], told["reason"], told["resolvable"]) for told in waiting["nodes"]
    ]

    released = client.rest("DELETE", f"allocations/{client.allocation(pod)['uid']}/")
    assert released["state"] == "released"
    assert not set(client.leases("way-a")) & {f"gpu-way-a-{minor}" for minor in minors}
    assert [client.used("way-a")[minor] for minor in minors] == [FREE, FREE]
    assert client.rest("GET", "claims/research/train/")["status"]["allocated"] == 1
    assert client.run(pod_shape("way-3", claim="train"), names) == "way-a", "who waited is served"
    assert client.rest("GET", "pods/research/way-3/explain/")["state"] == "bound"


def test_devices_without_a_pod(client: ClusterClient) -> None:
    """CLAIM-9 CLAIM-10 claim, renew, release over REST; the end of the time returns what is left."""
    client.register("bare", gpus=2)
    client.claim("desk", namespace="bare", devices={"count": 1, "model": ["H100"]}, ttlSeconds=600)
    pods = pod_shape("bare-1", namespace="bare", claim="desk")
    assert client.run(pods, ["bare"]) == "bare"
    taken = client.rest("POST", "allocations/", {"namespace": "bare", "claim": "desk", "holder": "rack-7"}, want=201)
    assert (taken["state"], taken["pod"]) == ("bound", "")
    name = f"gpu-{taken['node']}-{taken['devices'][0]['minor']}"
    assert client.leases(taken["node"])[name]["holder_identity"] == taken["holder"]
    [*renewed] = client.rest("POST", "claims/bare/desk/renew/", {"ttlSeconds": 3600})
    assert {one["ttl_seconds"] for one in renewed} == {3600}
    assert client.rest("DELETE", f"allocations/{taken['uid']}/")["state"] == "released"
    assert name not in client.leases(taken["node"])

    collect_garbage(now=database_now() + timedelta(hours=2), backends=current_backends())
    assert client.allocation(pods)["state"] == "released"
    assert client.used("bare") == [FREE, FREE]
    told = client.rest("GET", "pods/bare/bare-1/explain/")
    assert any(event["kind"] == "allocation.expired" for event in told["timeline"]), told["timeline"]


def test_pods_of_a_gang_are_held(client: ClusterClient) -> None:
    """CLAIM-8 a claim with gangRef is accepted; its pods wait until the gang is there."""
    client.register("gang-node")
    client.claim("crew", gangRef="crew")
    pod = pod_shape("gang-1", claim="crew")
    assert client.review("/webhooks/pods/validate", pod)["allowed"]
    soon = "it is looked at within seconds"
    assert client.refusal(pod, ["gang-node"]) == ({}, {"gang-node": soon})
    assert client.rest("GET", "pods/research/gang-1/explain/")["summary"] == soon


def test_nodes_with_a_device_plugin_take_shares_of_any_gpu(client: ClusterClient) -> None:
    """DEV-1 SHARE-2 nodes in mode device-plugin take whole GPUs of the kubelet's choice and shares of any GPU, and no
    request that restricts which GPUs they may be.
    """
    client.register("plugin", mode="device-plugin")
    client.claim("half", devices={"count": 1, "core": 50, "memoryRatio": 50})
    client.claim("linked", devices={"count": 2, "policy": "contiguous", "policyStrict": True})
    told = "node is in device-plugin mode, where the kubelet chooses GPUs: the pod restricts which they may be"
    assert client.refusal(pod_shape("plugin-0", claim="linked"), ["plugin"]) == ({}, {"plugin": told})
    assert client.run(pod_shape("plugin-1", claim="half"), ["plugin"]) == "plugin"
    assert client.run(pod_shape("plugin-2", resources={"kubernetes.io/gpu": "50"}), ["plugin"]) == "plugin"
    assert client.run(pod_shape("plugin-3", resources={"nvidia.com/gpu": "1"}), ["plugin"]) == "plugin"


@pytest.mark.parametrize(
    ("who", "claim", "want"),
    [
        pytest.param(
            "nobody", "nobody", "GpuClaim nobody does not exist in the namespace of the pod", id="no such claim"
        ),
        pytest.param(
            "abroad", "abroad", "GpuClaim abroad does not exist in the namespace of the pod", id="in another namespace"
        ),
        pytest.param(
            "named",
            "elsewhere/abroad",
            "annotation gpu.scheduling/claim names a claim of another namespace; write only the name of a GpuClaim "
            "in the namespace of the pod",
            id="named with a namespace",
        ),
    ],
)
def test_a_pod_without_its_claim_waits(client: ClusterClient, who: str, claim: str, want: str) -> None:
    """CLAIM-3 SCALE-7 missing or elsewhere: refused on every node with a reason a person can act on."""
    names = [f"lost-{who}-a", f"lost-{who}-b"]
    for name in names:
        client.register(name)
    if claim == "abroad":
        client.claim("abroad", namespace="elsewhere")
    pod = pod_shape(f"lost-{who}", claim=claim)
    assert client.refusal(pod, names) == ({}, dict.fromkeys(names, want))
    assert client.refusal(pod, names) == ({}, dict.fromkeys(names, want))
    told = client.rest("GET", f"pods/research/lost-{who}/explain/")
    assert (told["state"], told["summary"]) == ("pending", want)
    assert client.bind(pod, names[0]), "it is never bound"
    assert client.used(names[0]) == [FREE, FREE]


def test_a_claim_that_comes_later_serves_its_pods(client: ClusterClient) -> None:
    """CLAIM-3 a pod that waits for its claim is placed once it is there."""
    client.register("late")
    pod = pod_shape("late-1", claim="late")
    assert client.refusal(pod, ["late"])[1]
    client.claim("late")
    assert client.run(pod, ["late"]) == "late"


def test_objects_are_answered_with_objects(client: ClusterClient) -> None:
    """CLAIM-4 `Nodes` asked, the same `Nodes` answered; pods that ask for nothing pass everywhere."""
    client.register("object-a")
    client.register("object-b", gpus=0)
    none = "no devices of the node are registered with gpuplane"
    client.claim("object")
    nodes = [
        {"metadata": {"name": name, "labels": {"ü": "é"}}, "spec": {"taints": None}, "status": {"n": 1e3}}
        for name in ("object-a", "object-b")
    ]
    asked = {"Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    answer = client.filter(pod_shape("object-1", claim="object"), [], **asked)
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == nodes[:1]
    assert answer["FailedAndUnresolvableNodes"] == {"object-b": none}
    plain = client.filter(pod_shape("object-2"), [], **asked)
    assert plain["Nodes"]["items"] == nodes
    assert client.filter(pod_shape("object-2"), ["object-a", "unheard-of"])["NodeNames"] == ["object-a", "unheard-of"]
    unknown = client.filter(pod_shape("object-3", claim="object"), ["unheard-of"])
    assert unknown["FailedAndUnresolvableNodes"] == {"unheard-of": none}


def test_two_islands(client: ClusterClient) -> None:
    """CLAIM-5 contiguous stays in one island; strictly, it rather waits than straddles two."""
    halves = [[low, high, 4] for low in range(8) for high in range(low + 1, 8) if (low < 4) == (high < 4)]
    client.register("isles", gpus=8, links=halves)
    client.claim("one", namespace="isles")
    client.claim("three", namespace="isles", devices={"count": 3, "policy": "contiguous", "policyStrict": True})
    client.claim("loose", namespace="isles", devices={"count": 2, "policy": "contiguous"})
    first = pod_shape("isles-1", namespace="isles", claim="three")
    client.run(first, ["isles"])
    second = pod_shape("isles-2", namespace="isles", claim="three")
    client.run(second, ["isles"])
    held = [set(client.minors(first)), set(client.minors(second))]
    assert all(minors <= {0, 1, 2, 3} or minors <= {4, 5, 6, 7} for minors in held)
    assert held[0].isdisjoint(held[1])
    third = pod_shape("isles-3", namespace="isles", claim="three")
    assert client.refusal(third, ["isles"]) == ({"isles": "fewer than 3 whole gpu devices free"}, {})
    loose = pod_shape("isles-4", namespace="isles", claim="loose")
    client.run(loose, ["isles"])
    assert set(client.minors(loose)) == set(range(8)) - held[0] - held[1], "a preference only: two halves serve it"


def test_sixteen_halves_on_eight_cards(client: ClusterClient) -> None:
    """SHARE-2 LEASE-2 KAI #2153: exactly two a card in one pass, with binds racing behind the filters."""
    client.register("halves", gpus=8)
    client.claim("half", namespace="kai", devices={"count": 1, "core": 50, "memoryRatio": 50})
    pods = [pod_shape(f"halves-{number}", namespace="kai", claim="half") for number in range(16)]
    assert {client.chosen(pod, ["halves"]) for pod in pods} == {"halves"}
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pod: client.bind(pod, "halves"), pods)) == [""] * 16
    assert Counter(client.minors(pod)[0] for pod in pods) == dict.fromkeys(range(8), 2)
    assert client.used("halves") == [WHOLE] * 8
    assert {lease["holder_identity"] for lease in client.leases("halves").values()} == {"gpuplane/shares"}
    assert all(len(lease["sharers"]) == 2 for lease in client.leases("halves").values())
    failed, _ = client.refusal(pod_shape("halves-x", namespace="kai", claim="half"), ["halves"])
    assert failed == {"halves": "no device with 50 core free"}
    for pod in pods:
        client.rest("DELETE", f"allocations/{client.allocation(pod)['uid']}/")
    assert client.leases("halves") == {}
    assert client.used("halves") == [FREE] * 8


def test_small_pods_on_one_card(client: ClusterClient) -> None:
    """SHARE-2 LEASE-2 KAI #416: of 24 pods of 2,000 MiB one card of 46,068 MiB takes 23, and one waits with a
    reason.
    """
    client.register("l40s", gpus=1, memory="46068Mi")
    placed: list[Any] = []
    waiting: list[Any] = []
    for number in range(24):
        pod = pod_shape(f"small-{number}", resources={"koordinator.sh/gpu-memory": "2000Mi"})
        answer = client.filter(pod, ["l40s"])
        (placed if answer["NodeNames"] else waiting).append((pod, answer))
        if answer["NodeNames"]:
            assert client.bind(pod, "l40s") == ""
    assert (len(placed), len(waiting)) == (23, 1)
    assert waiting[0][1]["FailedNodes"] == {"l40s": "no device with 2000 MiB memory free"}
    assert client.used("l40s") == [(0, 23 * 2000 * MI)]
    assert len(client.leases("l40s")["gpu-l40s-0"]["sharers"]) == 23


def test_preemption_keeps_only_nodes_that_help(client: ClusterClient) -> None:
    """CLAIM-4 nobody is evicted for nothing: a node stays only if the victims' devices make room."""
    client.register("evict-two", gpus=2)
    client.register("evict-one", gpus=1)
    client.claim("one", namespace="evict")
    client.claim("two", namespace="evict", devices={"count": 2})
    uids = {}
    for number, node in enumerate(["evict-two", "evict-two", "evict-one"]):
        pod = pod_shape(f"evict-{number}", namespace="evict", claim="one")
        client.run(pod, [node])
        uids[number] = pod["metadata"]["uid"]
    urgent = pod_shape("evict-urgent", namespace="evict", claim="two")
    assert client.refusal(urgent, ["evict-two"])[0], "removing pods could help there"
    assert set(client.preempt(urgent, {"evict-two": [uids[0], uids[1]], "evict-one": [uids[2]]})) == {"evict-two"}
    assert client.preempt(urgent, {"evict-two": [uids[0]]}) == {}
    assert client.preempt(urgent, {"evict-two": ["11111111-nobody"], "unheard-of": [uids[0]]}) == {}
    assert set(client.preempt(pod_shape("evict-plain"), {"evict-one": [uids[2]]})) == {"evict-one"}
    assert client.preempt(pod_shape("evict-lost", claim="nobody"), {"evict-one": [uids[2]]}) == {}


def test_a_hold_ends_and_its_node_ranks_last(client: ClusterClient) -> None:
    """LEASE-3 an expired hold gives back; the node that was not bound in time ranks last for that pod, not for
    others.
    """
    client.register("hold-a", gpus=1)
    client.register("hold-b", gpus=1)
    client.claim("hold")
    names = ["hold-a", "hold-b"]
    pod = pod_shape("hold-1", claim="hold")
    assert client.chosen(pod, names) == "hold-a"
    assert client.chosen(pod, names) == "hold-a", "its own hold counts as free"
    held = client.allocation(pod)
    assert (held["state"], held["hold_until"] is not None) == ("held", True)
    assert client.leases("hold-a") == {}, "a hold takes no lease"
    assert client.refusal(pod_shape("hold-2", claim="hold"), ["hold-a"])[0] == {"hold-a": "no whole gpu device free"}
    expire_holds(database_now() + timedelta(minutes=1))
    assert client.allocation(pod)["state"] == "failed"
    assert client.chosen(pod, names) == "hold-b"
    assert client.chosen(pod_shape("hold-2", claim="hold"), names) == "hold-a"
    assert client.bind(pod, "hold-b") == ""


def test_bind_without_a_hold_plans_again_on_that_node(client: ClusterClient) -> None:
    """LEASE-3 bind after the hold ended takes what is free on the node named, or refuses."""
    client.register("again", gpus=1)
    client.claim("again")
    pod, other = pod_shape("again-1", claim="again"), pod_shape("again-2", claim="again")
    assert client.chosen(pod, ["again"]) == "again"
    expire_holds(database_now() + timedelta(minutes=1))
    assert client.bind(pod, "again") == ""
    assert client.bind(other, "again") == "the pod has no live hold and what it asks for is not known: filter it again"
    assert client.bind(pod, "elsewhere") == "the pod already has devices on again"
    assert client.used("again") == [WHOLE]


def test_who_may_ask(live_app: LiveApp, client: ClusterClient) -> None:
    """VIEW-6 401 without a token, 403 with a viewer's, an admin's, or that of another machine."""
    for path in ("/extender/filter", "/webhooks/pods/mutate", "/api/v1/nodes/"):
        for headers in ({}, {"Authorization": "Bearer nonsense"}):
            assert httpx.post(live_app.url + path, json={}, headers=headers).status_code == 401
    with live_app.client(role=Role.VIEWER) as viewer:
        assert viewer.post("/extender/filter", json={}).status_code == 403
        assert viewer.post("/webhooks/pods/mutate", json={}).status_code == 403
        assert viewer.get("/api/v1/nodes/").status_code == 200
        assert viewer.put("/api/v1/nodes/n/inventory/", json={"devices": []}).status_code == 403
    asked = {"Pod": pod_shape("who"), "NodeNames": ["a"]}
    assert client.cluster.post("/extender/filter", json=asked).status_code == 200
    assert client.cluster.post("/webhooks/pods/mutate", json={}).status_code == 200
    assert client.person.get("/api/v1/leases/").status_code == 200
    assert client.person.post("/extender/filter", json=asked).status_code == 403
    for scope, door in ((TokenScope.EXTENDER, "/webhooks/pods/mutate"), (TokenScope.WEBHOOKS, "/extender/filter")):
        with live_app.client(scope=scope) as machine:
            refused = machine.post(door, json=asked)
            assert refused.status_code == 403
            assert f"the scope of this one is {scope.value}" in refused.json()["detail"]
            assert machine.get("/api/v1/leases/").status_code == 403
