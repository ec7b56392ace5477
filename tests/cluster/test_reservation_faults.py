"""Reservation pods that go wrong, on a real API server: kubelets that refuse, lie or forget, pods that are deleted, and
gpuplane killed in between. Nobody who runs is touched, nothing is given twice, and everything comes to rest.

GPUPLANE_RESERVATION_SECONDS is small, so that a test waits little for a time-out.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.device_manager import Behaviour
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.group_promises import LABEL
from tests.cluster.invariants import settled
from tests.cluster.proxied import BINDING, LEASE, Between, between, proxied_stack
from tests.cluster.sharing import (
    RESERVATION_PODS,
    SOON,
    groups,
    half,
    happened,
    in_states,
    kubelets,
    named_gpu,
    plain,
    reservation_pods,
    sees,
    states,
    watching,
)
from tests.cluster.waiting import bound, count_bound, pods_of, said

__all__ = ["between"]

SECONDS = 5
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MADE = f"{chart.RESERVATIONS}/pods$"
ACCOUNTS = ("gpuplane", "gpuplane-worker", "gpuplane-watch")


@pytest.fixture(scope="module")
def module_stack(plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane on SQLite behind both proxies, that waits a few seconds for a reservation pod."""
    with proxied_stack(plane, "sqlite", GPUPLANE_RESERVATION_SECONDS=str(SECONDS)) as stack:
        yield stack


# no GPU is to be had

VAIN: dict[str, tuple[Behaviour, str, str]] = {
    "refused": ("UnexpectedAdmissionError", "", "UnexpectedAdmissionError"),
    "out-of": ("OutOfnvidia.com/gpu", "", "OutOfnvidia.com/gpu"),
    "never": ("never", "", f"reported no GPU within {SECONDS} s"),
    "late": ("late", "", f"reported no GPU within {SECONDS} s"),
    "unknown": ("other", "GPU-of-nobody", "is not known on kubelet-unknown"),
    "elsewhere": ("other", "GPU-kubelet-held-0", "is of another node"),
    "held": ("other", "GPU-kubelet-held-1", "gave to another pod before"),
    "twice": ("other", "GPU-kubelet-twice-0", "which another group has"),
}
"""Node → what its kubelet does with a reservation pod, the GPU that is named, what the bind says."""


def test_no_gpu_in_time_or_the_wrong_one(stack: Stack, namespace: str) -> None:
    """SHARE-5 SHARE-6 each way to get no GPU at once, each on its own node: the bind fails with the reason, the pod
    goes, the node begins no new group; plain pods and the groups that are there go on; the pods find another node.
    """
    nodes = [f"kubelet-{name}" for name in VAIN]
    with (
        kubelets(stack, nodes, gpus=2, agents=True) as node,
        watching(stack, namespace).watching() as seen,
    ):
        node.choose("kubelet-twice", "GPU-kubelet-twice-0")
        node.choose("kubelet-held", "GPU-kubelet-held-1")
        first = [
            half("first-twice", namespace, fraction="0.6", on="kubelet-twice"),
            plain("first-held", namespace, on="kubelet-held"),
        ]
        stack.add_pods(first)
        seen.until(count_bound(2), seconds=SOON, what="two GPUs in use")
        settled(stack, records=node.records)
        for name, (behaviour, other, _) in VAIN.items():
            node.behave(f"kubelet-{name}", behaviour, other=other)
        stack.add_pods([half(f"vain-{name}", namespace, fraction="0.6", on=f"kubelet-{name}") for name in VAIN])

        def failed(name: str) -> list[str]:
            return happened(stack, "reservation.failed", f"kubelet-{name}")

        for name, (_, _, reason) in VAIN.items():
            eventually(partial(failed, name), seconds=60, what=f"{name}: the reservation failed")
            assert reason in failed(name)[0], name
        seen.until(
            lambda seen: all("begins no new group" in said(pods_of(seen)[f"vain-{name}"]) for name in VAIN),
            seconds=60,
            what="each waits with the reason",
        )
        assert {name: len(failed(name)) for name in VAIN} == dict.fromkeys(VAIN, 1), "no endless retries"
        assert {name: len(reservation_pods(stack, f"kubelet-{name}")) for name in VAIN} == {
            name: 1 if name == "twice" else 0 for name in VAIN
        }
        node.late.set()
        for name in VAIN:
            node.behave(f"kubelet-{name}", "as usual")
        there = [name for name in VAIN if name not in {"twice", "held"}]
        natives = [plain(f"plain-{name}", namespace, on=f"kubelet-{name}") for name in there]
        joins = half("joins", namespace, fraction="0.4", on="kubelet-twice")
        stack.add_pods([*natives, joins])
        seen.until(bound("joins", *(f"plain-{name}" for name in there)), seconds=SOON, what="nobody else is held up")
        assert sees(pods_of(seen)["joins"]) == ["GPU-kubelet-twice-0"]
        settled(stack, records=node.records)


def test_the_api_server_refuses_the_pod(stack: Stack, namespace: str) -> None:
    """SHARE-5 a quota on the namespace: 403, the bind fails with the API server's words, and nothing is left."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{chart.RESERVATIONS}/resourcequotas"
    with kubelets(stack, ["kubelet-quota"], gpus=1) as node, watching(stack, namespace).watching() as seen:
        stack.api.create(path, quota)
        try:
            eventually(
                lambda: stack.api.get(f"{path}/none").get("status", {}).get("hard"), seconds=SOON, what="the quota"
            )
            stack.add_pods([half("waits", namespace)])
            eventually(
                lambda: happened(stack, "reservation.failed", "kubelet-quota"), seconds=SOON, what="the bind failed"
            )
        finally:
            stack.api.delete(f"{path}/none")
        (reason,) = happened(stack, "reservation.failed", "kubelet-quota")
        assert "quota: none" in reason
        in_states(stack, "kubelet-quota")
        seen.until(bound("waits"), seconds=75, what="bound once the node's back-off is over")
        settled(stack, records=node.records)


# reservation pods that die


@pytest.mark.parametrize("how", ["deleted", "evicted", "failed", "drained"])
def test_a_lost_reservation_pod_comes_back(stack: Stack, namespace: str, how: str) -> None:
    """SHARE-7 deleted, evicted, ended, its node drained: the sharers run on, untouched, and the new pod of the same
    name protects their GPU again.
    """
    name = f"kubelet-{how}"
    with kubelets(stack, [name], gpus=3) as node, watching(stack, namespace).watching() as seen:
        stack.add_pods([half(f"half-{number}", namespace) for number in range(2)])
        seen.until(count_bound(2), seconds=SOON, what="two halves on one GPU")
        settled(stack, records=node.records)
        before = {one["metadata"]["name"]: one["metadata"] for one in pods_of(seen).values()}
        (lost,) = reservation_pods(stack, name)
        node.choose(name, *sees(pods_of(seen)["half-0"]))
        lose(stack, how, lost)
        eventually(
            lambda: states(stack, name) == ["ready"] and _uid(stack, name) not in {"", lost["metadata"]["uid"]},
            seconds=60,
            what="protected again",
        )
        (made,) = reservation_pods(stack, name)
        assert made["metadata"]["name"] == lost["metadata"]["name"]
        after = {one["metadata"]["name"]: one["metadata"] for one in pods_of(seen).values()}
        assert {key: one["uid"] for key, one in after.items()} == {key: one["uid"] for key, one in before.items()}
        assert not any("deletionTimestamp" in one for one in after.values())
        assert len(happened(stack, "reservation.unprotected", name)) == 1
        stack.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})
        settled(stack, records=node.records)


def _uid(stack: Stack, node: str) -> str:
    (group,) = groups(stack, node)
    return group.pod_uid


def lose(stack: Stack, how: str, lost: Json) -> None:
    """What an administrator, or the kubelet, does to a reservation pod."""
    path = f"{RESERVATION_PODS}/{lost['metadata']['name']}"
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": lost["metadata"]["name"], "namespace": chart.RESERVATIONS},
    }
    if how == "drained":
        stack.api.patch(f"/api/v1/nodes/{lost['spec']['nodeName']}", {"spec": {"unschedulable": True}})
    if how == "deleted":
        stack.api.delete(path)
    elif how == "failed":
        stack.api.patch(f"{path}/status", {"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}})
    else:
        stack.api.create(f"{path}/eviction", eviction)


def test_another_gpu_for_the_new_pod(stack: Stack, namespace: str) -> None:
    """SHARE-7 SHARE-8 the kubelet gives the new reservation pod another GPU: it goes at once, and is tried again when
    the kubelet's record changes; nobody new comes to the GPU meanwhile, nobody who runs is touched.
    """
    name = "kubelet-another"
    with kubelets(stack, [name], gpus=2, agents=True) as node, watching(stack, namespace).watching() as seen:
        node.choose(name, f"GPU-{name}-0")
        stack.add_pods([half("stays", namespace)])
        seen.until(bound("stays"), seconds=SOON, what="a half bound")
        settled(stack, records=node.records)
        node.choose(name, f"GPU-{name}-1")
        lose(stack, "deleted", reservation_pods(stack, name)[0])
        eventually(
            lambda: [one.state for one in groups(stack, name)] == ["unprotected"] and not reservation_pods(stack, name),
            seconds=60,
            what="unprotected, and the pod with the other GPU gone",
        )
        node.choose(name, f"GPU-{name}-1")
        stack.add_pods([half("new", namespace)])
        seen.until(bound("new"), seconds=SOON, what="somebody new gets the other GPU")
        assert sees(pods_of(seen)["new"]) == [f"GPU-{name}-1"]
        in_states(stack, name, "ready", "ready", seconds=60)
        assert sees(pods_of(seen)["stays"]) == [f"GPU-{name}-0"]
        settled(stack, records=node.records)


def test_a_kubelet_that_forgets(stack: Stack, namespace: str) -> None:
    """SHARE-7 the record is lost, and a GPU that is shared is given to the reservation pod of a new group: it is told
    to fail, the sharers run on with what they have.
    """
    name = "kubelet-forgets"
    with kubelets(stack, [name], gpus=2) as node, watching(stack, namespace).watching() as seen:
        node.choose(name, f"GPU-{name}-0")
        stack.add_pods([half("first", namespace, fraction="0.9")])
        seen.until(bound("first"), seconds=SOON, what="a share bound")
        node.forget(name)
        node.choose(name, f"GPU-{name}-0")
        stack.add_pods([half("second", namespace, fraction="0.9")])
        eventually(lambda: happened(stack, "reservation.failed", name), seconds=SOON, what="taken")
        assert "which another group has" in happened(stack, "reservation.failed", name)[0]
        in_states(stack, name, "ready")
        assert [one.uuids for one in groups(stack, name)] == [(f"GPU-{name}-0",)]
        assert "deletionTimestamp" not in pods_of(seen)["first"]["metadata"]
        settled(stack)


def test_the_namespace_is_deleted(stack: Stack, namespace: str) -> None:
    """SHARE-7 the namespace of reservation pods goes with all in it, and gpuplane, where it has the rights, makes it
    again with account and Role: sharers run on, groups are protected again, new ones begin.
    """
    rights: Json = {
        "metadata": {"name": "makes-home"},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "serviceaccounts", "pods"], "verbs": ["*"]},
            {
                "apiGroups": ["rbac.authorization.k8s.io"],
                "resources": ["roles", "rolebindings"],
                "verbs": ["create", "get", "bind", "escalate"],
            },
        ],
    }
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": chart.NAMESPACE} for name in ACCOUNTS]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "makes-home"}
    name = "kubelet-homeless"
    with (
        kubelets(stack, [name], gpus=4, fast=False, agents=True) as node,
        watching(stack, namespace).watching() as seen,
        ExitStack() as undo,
    ):
        undo.callback(stack.install)
        stack.api.create(f"{RBAC}/clusterroles", rights)
        undo.callback(stack.api.delete, f"{RBAC}/clusterroles/makes-home")
        binding = {"metadata": {"name": "makes-home"}, "roleRef": reference, "subjects": subjects}
        stack.api.create(f"{RBAC}/clusterrolebindings", binding)
        undo.callback(stack.api.delete, f"{RBAC}/clusterrolebindings/makes-home")
        stack.add_pods([half("stays", namespace)])
        seen.until(bound("stays"), seconds=SOON, what="a half bound")
        uid = stack.api.get(f"/api/v1/namespaces/{chart.RESERVATIONS}")["metadata"]["uid"]
        (protects,) = reservation_pods(stack, name)
        # another pod with its GPU would leave it to chance, a try each 30 s and 2 min, when the kubelet gives it back
        node.keep(name, protects["metadata"]["name"], *sees(pods_of(seen)["stays"]))
        stack.api.delete(f"/api/v1/namespaces/{chart.RESERVATIONS}")
        place = f"/api/v1/namespaces/{chart.RESERVATIONS}"
        eventually(lambda: (stack.api.find(place) or {}).get("metadata", {}).get("uid") != uid, seconds=60, what="gone")
        stack.add_pods([half(f"new-{number}", namespace, fraction="0.9") for number in range(2)])
        # a bind that meets the namespace half made puts the node off: 30 s, or 2 min after a second one
        seen.until(bound("new-0", "new-1"), seconds=200, what="new groups in the new namespace")
        in_states(stack, name, "ready", "ready", "ready", seconds=90)
        assert "deletionTimestamp" not in pods_of(seen)["stays"]["metadata"]
        settled(stack, records=node.records)


# gpuplane is killed


def test_web_is_killed_at_every_step_of_a_bind(stack: Stack, namespace: str, between: Between) -> None:
    """SHARE-5 LEASE-3 the web process dies with one bind before each of: its reservation pod is made, its GPU is told,
    its Lease, its Binding. Every pod is bound in the end, to the GPU of its reservation pod; no pod is left over.
    """
    steps = ("binding", "lease", "told", "made")
    nodes = {step: f"kubelet-dies-{step}" for step in steps}
    gates = {step: threading.Event() for step in steps}
    rules: dict[str, tuple[str, str]] = {
        "binding": ("POST", BINDING),
        "lease": ("POST", LEASE),
        "made": ("POST", MADE),
    }
    with (
        kubelets(stack, nodes.values(), gpus=2) as node,
        watching(stack, namespace).watching() as seen,
        ExitStack() as held,
    ):
        node.behave(nodes["told"], "late")
        for step in steps:
            body = half(f"at-{step}", namespace, on=nodes[step])
            if step == "told":
                stack.add_pods([body])
                eventually(
                    lambda: reservation_pods(stack, nodes["told"]), seconds=SOON, what="a pod that is waited for"
                )
                continue
            rule = held.enter_context(between.api.rule(*rules[step], gate=gates[step]))
            stack.add_pods([body])
            assert rule.arrived.wait(20), step
        stack.gpuplane.web.kill()
        node.late.set()
        for gate in gates.values():
            gate.set()
        stack.gpuplane.web.start()
        node.behave(nodes["told"], "as usual")
        seen.until(count_bound(4), seconds=120, what="every pod bound in the end")
        truth = settled(stack, records=node.records, seconds=120)
        assert [one.state for one in truth.groups] == ["ready"] * 4
        for step in steps:
            stored = pods_of(seen)[f"at-{step}"]
            (made,) = reservation_pods(stack, nodes[step])
            assert (stored["metadata"]["labels"][LABEL], sees(stored)) == (
                made["metadata"]["labels"][LABEL],
                [named_gpu(made)],
            )


def test_worker_and_watch_are_killed_as_a_group_ends(stack: Stack, namespace: str, between: Between) -> None:
    """SHARE-7 LEASE-4 they die with the deletion of the reservation pod on its way; those that follow end the group."""
    name = "kubelet-ends"
    with kubelets(stack, [name], gpus=2) as node, watching(stack, namespace).watching() as seen:
        stack.add_pods([half(f"half-{number}", namespace) for number in range(2)])
        seen.until(count_bound(2), seconds=SOON, what="two halves on one GPU")
        settled(stack, records=node.records)
        path = f"{chart.RESERVATIONS}/pods/gpu-reservation"
        with between.api.rule("DELETE", path, times=4, status=500) as rule:
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
            assert rule.arrived.wait(20)
            for one in (stack.gpuplane.worker, stack.gpuplane.watch):
                one.kill()
        for one in (stack.gpuplane.worker, stack.gpuplane.watch):
            one.start()
        eventually(lambda: not reservation_pods(stack), seconds=60, what="the reservation pod gone")
        in_states(stack, name)
        node.until(lambda now: len(now.free(name)) == 2, seconds=SOON, what="both GPUs free")
