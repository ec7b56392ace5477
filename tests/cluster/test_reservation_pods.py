"""Shares on nodes whose kubelet hands out the GPUs: who gets what, on a real API server with imitated kubelets that
choose at random.

After each test kubelets' tables, reservation pods, groups, ledger, Leases and annotations are compared.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import ApiRefused
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.group_promises import LABEL, RESERVED
from tests.cluster.invariants import settled
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
    watching,
)
from tests.cluster.test_guards import user
from tests.cluster.truth import read
from tests.cluster.waiting import bound, count_bound, pods_of, said, unschedulable

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def module_stack(plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane on PostgreSQL, and its scheduler."""
    made = Stack(plane, plane.folder)
    try:
        made.install()
        made.start_gpuplane(vendor="postgresql")
        made.start_scheduler()
        yield made
    finally:
        made.close()


def test_sixteen_halves_make_two_on_each_of_eight(stack: Stack, namespace: str) -> None:
    """SHARE-1 SHARE-3 SHARE-4 SHARE-5 the real program in a namespace of the level `restricted`; one reservation pod a
    GPU, two sharers each; the 17th waits; all is free again when they end.
    """
    enforced = stack.api.get(f"/api/v1/namespaces/{chart.RESERVATIONS}")["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "restricted"
    with kubelets(stack, ["kubelet-halves"], fast=False) as node, watching(stack, namespace).watching() as seen:
        stack.add_pods([half(f"half-{number}", namespace) for number in range(16)])
        seen.until(count_bound(16), seconds=90, what="16 halves bound")
        assert sorted(Counter(gpu for one in seen.now.values() for gpu in sees(one)).values()) == [2] * 8
        settled(stack, records=node.records)
        assert len(reservation_pods(stack)) == 8
        assert len({named_gpu(one) for one in reservation_pods(stack)}) == 8
        stack.add_pods([half("late", namespace)])
        seen.until(unschedulable("late"), seconds=SOON, what="no room for a 17th")
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
        eventually(lambda: not reservation_pods(stack), seconds=SOON, what="no reservation pod for nobody")
        node.until(lambda now: len(now.free("kubelet-halves")) == 8, seconds=SOON, what="every GPU free")
        in_states(stack, "kubelet-halves")


def test_as_many_shares_of_memory_as_the_card_has(stack: Stack, namespace: str) -> None:
    """SHARE-2 24 × 2,000 MiB on one card of 46,068 MiB: 23 behind one reservation pod, one waits with the reason."""
    about: dict[str, Any] = {"gpus": 1, "model": "L40S", "memory": "46068Mi"}
    with kubelets(stack, ["kubelet-card"], **about) as node, watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"part-{one}", namespace, annotations={"gpu-memory": "2000"}) for one in range(24)])
        seen.until(count_bound(23), seconds=60, what="23 pods bound")
        (waiting,) = [name for name, one in pods_of(seen).items() if not one["spec"].get("nodeName")]
        seen.until(unschedulable(waiting), seconds=SOON, what="the last one Unschedulable")
        assert "no device with 2000 MiB memory free" in said(pods_of(seen)[waiting])
        settled(stack, records=node.records)
        assert len(reservation_pods(stack)) == 1


def test_whole_devices_are_one_reservation_pod(stack: Stack, namespace: str) -> None:
    """SHARE-3 three GPUs by a claim are one reservation pod of three, those that the plugin chose."""
    with kubelets(stack, ["kubelet-whole"], gpus=4) as node, watching(stack, namespace).watching() as seen:
        chosen = [f"GPU-kubelet-whole-{minor}" for minor in (0, 2, 3)]
        node.choose("kubelet-whole", *chosen)
        stack.api.apply(claim("three", namespace, devices={"count": 3}))
        stack.add_pods([pod("train", namespace, claimed="three")])
        seen.until(bound("train"), seconds=SOON, what="the pod bound")
        assert sees(pods_of(seen)["train"]) == chosen
        (made,) = reservation_pods(stack)
        assert made["spec"]["containers"][0]["resources"]["limits"][GPU] == "3"
        assert [(one.gpus, one.shared) for one in groups(stack)] == [(3, False)]
        stack.api.apply(claim("strict", namespace, devices={"count": 2, "policy": "contiguous", "policyStrict": True}))
        stack.add_pods([pod("strict", namespace, claimed="strict"), half("share", namespace)])
        seen.until(bound("share"), seconds=SOON, what="the GPU that is left, shared")
        seen.until(unschedulable("strict"), seconds=SOON, what="a strict policy refused there")
        settled(stack, records=node.records)


def test_plain_pods_whose_guess_moves(stack: Stack, namespace: str) -> None:
    """SHARE-5 DEV-8 plain `nvidia.com/gpu` pods and halves together: kubelets choose otherwise than was guessed, and
    everybody has what the kubelet's record says.
    """
    with (
        kubelets(stack, ["kubelet-mixed"], gpus=6, agents=True) as node,
        watching(stack, namespace).watching() as seen,
    ):
        for minors in ((5,), (4,), (0,), (1,), (2,)):
            node.choose("kubelet-mixed", *(f"GPU-kubelet-mixed-{minor}" for minor in minors))
        natives = [plain(f"plain-{number}", namespace) for number in range(3)]
        halves = [half(f"half-{number}", namespace) for number in range(5)]
        mixed = [one for pair in zip(natives, halves, strict=False) for one in pair]
        stack.add_pods([*mixed, *halves[3:]])
        seen.until(count_bound(8), seconds=60, what="3 plain pods and 5 halves bound")
        truth = settled(stack, records=node.records)
        whole = {grant.uuid for row in truth.allocations for grant in row.grants if grant.whole}
        shared = {grant.uuid for row in truth.allocations for grant in row.grants if not grant.whole}
        assert (len(whole), len(shared), whole & shared) == (3, 3, set())


def test_a_user_forges_what_reservation_pods_say(stack: Stack, namespace: str) -> None:
    """SHARE-4 DEV-11 nobody writes the annotation, or the label of a group, on pods of their own; who has all rights in
    the namespace of reservation pods loses a group its protection for a moment, and nobody their GPU.
    """
    with kubelets(stack, ["kubelet-forged"], gpus=2) as node, watching(stack, namespace).watching() as seen:
        stack.add_pods([half("honest", namespace)])
        seen.until(bound("honest"), seconds=SOON, what="the half bound")
        (made,) = reservation_pods(stack)
        place = f"{RESERVATION_PODS}/{made['metadata']['name']}"
        with user(stack, namespace) as dev:
            forged = half("forged", namespace)
            forged["metadata"]["labels"][LABEL] = made["metadata"]["labels"][LABEL]
            with pytest.raises(ApiRefused, match=LABEL):
                dev.create(f"/api/v1/namespaces/{namespace}/pods", forged)
            told = half("told", namespace)
            told["metadata"]["annotations"][RESERVED] = "GPU-kubelet-forged-1"
            with pytest.raises(ApiRefused, match=RESERVED):
                dev.create(f"/api/v1/namespaces/{namespace}/pods", told)
            label = {"metadata": {"labels": {LABEL: "another"}}}
            with pytest.raises(ApiRefused, match=LABEL):
                dev.patch(f"/api/v1/namespaces/{namespace}/pods/honest", label)
        (other,) = node.free("kubelet-forged")
        forging = {"metadata": {"annotations": {RESERVED: other}}}
        node.choose("kubelet-forged", *sees(pods_of(seen)["honest"]))
        with user(stack, chart.RESERVATIONS) as dev:
            dev.patch(place, forging)
        eventually(
            lambda: happened(stack, "reservation.unprotected", "kubelet-forged"), seconds=60, what="it was noticed"
        )
        in_states(stack, "kubelet-forged", "ready", seconds=60)
        assert stack.api.get(place)["metadata"]["uid"] != made["metadata"]["uid"]
        assert sees(pods_of(seen)["honest"]) == [named_gpu(stack.api.get(place))]
        settled(stack, records=node.records)


def test_kais_own_groups_are_taken_over(stack: Stack, namespace: str) -> None:
    """SHARE-7 LEASE-6 a reservation pod of KAI's and its sharers are adopted; a half of ours joins them; the pod goes
    with the last of them.
    """
    with kubelets(stack, ["kubelet-kai"], gpus=2) as node, watching(stack, namespace).watching() as seen:
        group, theirs = "2f9a5c1e-kai", "runai-reservation"
        stack.plane.namespace(theirs)
        stack.adopting = [theirs]
        stack.install(scope="ours")  # as long as KAI places pods
        try:
            keeper = pod(
                "runai-reservation-gpu-abc45",
                theirs,
                resources={GPU: 1},
                scheduler="kai-scheduler",
                nodeName="kubelet-kai",
            )
            keeper["metadata"]["labels"] = {"app": theirs, LABEL: group}
            node.choose("kubelet-kai", "GPU-kubelet-kai-1")
            stack.api.create(f"/api/v1/namespaces/{theirs}/pods", keeper)
            node.until(lambda now: len(now.free("kubelet-kai")) == 1, seconds=SOON, what="KAI's pod has its GPU")
            keeping = {"metadata": {"annotations": {RESERVED: "GPU-kubelet-kai-1"}}}
            stack.api.patch(f"/api/v1/namespaces/{theirs}/pods/runai-reservation-gpu-abc45", keeping)
            for number in range(2):
                body = half(f"kai-{number}", namespace, fraction="0.25", scheduler="kai-scheduler")
                body["metadata"]["labels"][LABEL] = group
                body["spec"]["nodeName"] = "kubelet-kai"
                stack.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
        finally:
            stack.install()
        in_states(stack, "kubelet-kai", "ready", seconds=60)
        stack.add_pods([half("ours", namespace)])
        seen.until(bound("ours"), seconds=SOON, what="a half of ours bound")
        ours = pods_of(seen)["ours"]
        assert (ours["metadata"]["labels"][LABEL], sees(ours)) == (group, ["GPU-kubelet-kai-1"])
        (device,) = [one for one in read(stack).devices.values() if one.uuid == "GPU-kubelet-kai-1"]
        assert device.core_used == 100
        settled(stack)
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
        eventually(
            lambda: not stack.api.items(f"/api/v1/namespaces/{theirs}/pods"), seconds=60, what="KAI's pod deleted"
        )
        in_states(stack, "kubelet-kai")


def test_spare_groups(stack: Stack, namespace: str) -> None:
    """SHARE-7 one group a node is kept warm for the next sharer, who waits for no reservation pod."""
    ours = stack.gpuplane
    ours.configure(GPUPLANE_SPARE_GROUPS="1")
    restarted = (ours.web, ours.worker, ours.watch)
    for one in restarted:
        one.stop()
        one.start()
    try:
        with kubelets(stack, ["kubelet-spare"], gpus=2) as node, watching(stack, namespace).watching() as seen:
            stack.add_pods([half(f"first-{number}", namespace, fraction="0.9") for number in range(2)])
            seen.until(count_bound(2), seconds=SOON, what="two groups")
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
            in_states(stack, "kubelet-spare", "ready")
            (kept,) = reservation_pods(stack)
            stack.add_pods([half("next", namespace)])
            seen.until(bound("next"), seconds=SOON, what="the next sharer")
            assert [one["metadata"]["uid"] for one in reservation_pods(stack)] == [kept["metadata"]["uid"]]
            settled(stack, records=node.records)
    finally:
        ours.configure(GPUPLANE_SPARE_GROUPS="0")
        for one in restarted:
            one.stop()
            one.start()
