"""Reservation pods that die while their GPU is shared, and what a reinstallation finds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from allocations.ledger.groups import Group, lose_group, put_off, read_groups
from allocations.models import Allocation, AllocationDevice, GpuGroup
from allocations.scheduling.reservation_pods import settle
from nodes import revisions
from nodes.models import Device
from storage.clock import database_now
from storage.transactions import atomic_retry
from tests.fakes.apikinds import PODS
from tests.fakes.kubelet import GPU, RESERVATIONS
from tests.integration.cluster.conftest import MERGE, NAMESPACE
from tests.integration.cluster.reservation_pods.conftest import Shares


@pytest.fixture
def shared(shares: Shares) -> Shares:
    """Two halves on one GPU, GPU-n1-0."""
    for name in ("one", "two"):
        assert shares.place(name) == ""
    assert shares.grouped() == ["GPU-n1-0"]
    return shares


def lose(shares: Shares, *, phase: str = "") -> None:
    """The reservation pod is deleted, or ends."""
    (name,) = shares.pods()
    if phase:
        shares.world.server.set_pod_phase(name, phase, namespace=RESERVATIONS)
    else:
        shares.world.server.remove_pod(name, namespace=RESERVATIONS)


def uid_of_pod(shares: Shares) -> str:
    (pod,) = shares.kubelets.reservations().values()
    return str(pod["metadata"]["uid"])


def state(shares: Shares) -> str:
    return str(GpuGroup.objects.exclude(state="gone").get().state)


@pytest.mark.parametrize("phase", [pytest.param("", id="deleted"), pytest.param("Failed", id="evicted by its kubelet")])
def test_a_lost_reservation_pod_is_made_again(shared: Shares, phase: str) -> None:
    """SHARE-7 running pods go on; a pod of the same name takes the same GPU, and the group takes sharers again."""
    shared.kubelets.silent = True
    lose(shared, phase=phase)
    shared.world.reconcile()
    assert state(shared) == "unprotected"
    assert shared.world.live() == 2
    shared.pod("late")
    assert shared.world.filter("late") == "n1"
    late = AllocationDevice.objects.get(allocation__pod_name="late", live=True)
    assert late.uuid != "GPU-n1-0", "an unprotected group takes nobody new"
    shared.world.reconcile()
    shared.world.reconcile()
    name = shared.kubelets.next_reservation()
    shared.kubelets.tell(name, "GPU-n1-0")
    shared.world.reconcile()
    assert (state(shared), shared.world.live()) == ("ready", 3)
    assert shared.holds("one") == shared.holds("two") == ["GPU-n1-0"]
    shared.world.remove("late")


def test_another_gpu_is_given_back_at_once(shared: Shares) -> None:
    """SHARE-7 a new pod that got another GPU goes at once, and the next try waits for the back-off or the kubelet."""
    shared.kubelets.silent = True
    lose(shared)
    shared.world.reconcile()
    shared.world.reconcile()
    shared.kubelets.tell(shared.kubelets.next_reservation(), "GPU-n1-3")
    shared.world.reconcile()
    assert (state(shared), shared.pods()) == ("unprotected", [])
    shared.world.reconcile()
    assert shared.pods() == [], "30 s of back-off"
    shared.world.reconcile(later=31)
    assert len(shared.pods()) == 1
    assert shared.world.live() == 2


def test_only_what_others_get_ends_the_back_off(shared: Shares, kubelets_record: Any) -> None:
    """SHARE-7 the record changes as the lost pod and the one in vain end, however late the agent tells that: no reason
    to try again; another pod's GPU is one.
    """
    shared.kubelets.silent = True
    before = uid_of_pod(shared)
    lose(shared)
    shared.world.reconcile()
    shared.world.reconcile()
    made = uid_of_pod(shared)
    kubelets_record("n1", {before: ["GPU-n1-0"], made: ["GPU-n1-3"]})
    shared.kubelets.tell(shared.kubelets.next_reservation(), "GPU-n1-3")
    shared.world.reconcile()
    assert (state(shared), shared.pods()) == ("unprotected", [])
    kubelets_record("n1", {})
    shared.world.reconcile()
    assert shared.pods() == [], "30 s of back-off"
    kubelets_record("n1", {"of-another": ["GPU-n1-2"]})
    shared.world.reconcile()
    assert len(shared.pods()) == 1


def test_who_looked_before_it_was_put_off_makes_no_pod(shared: Shares, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-7 another process read the group, then the pod in vain was put off and deleted, then it listed the pods."""
    shared.kubelets.silent = True
    lose(shared)
    shared.world.reconcile()
    shared.world.reconcile()
    shared.kubelets.tell(shared.kubelets.next_reservation(), "GPU-n1-3")
    read, name = read_groups, GpuGroup.objects.exclude(state="gone").get().name
    cluster = shared.world.backends.cluster
    assert cluster is not None

    def meanwhile() -> list[Group]:
        before = read()
        monkeypatch.setattr(settle, "read_groups", read)
        settle.settle_groups(cluster, now=database_now(), names=[name])
        return before

    monkeypatch.setattr(settle, "read_groups", meanwhile)
    settle.settle_groups(cluster, now=database_now(), names=[name])
    assert shared.pods() == [], "30 s of back-off"


def test_the_watch_notices_at_once(shared: Shares, handled_events: Any) -> None:
    """SHARE-7 the event of the pod's end moves its group and makes the new pod, without waiting for a comparison."""
    shared.kubelets.silent = True
    lose(shared)
    handled_events()
    assert state(shared) == "unprotected"
    assert shared.pods() == [GpuGroup.objects.get().pod_name]
    assert GpuGroup.objects.get().pod_uid == uid_of_pod(shared)


def test_a_group_that_another_found_lost_a_moment_ago(shared: Shares, handled_events: Any) -> None:
    """SHARE-7 two events at once: the second finds the group unprotected already, and makes the pod all the same."""
    shared.kubelets.silent = True
    lose(shared)
    lost = GpuGroup.objects.get()
    assert lose_group(lost.pk, "deleted", now=database_now(), actor="test")
    handled_events()
    assert shared.pods() == [lost.pod_name]


def test_a_new_pod_is_not_late_by_the_age_of_the_old(shared: Shares, handled_events: Any) -> None:
    """SHARE-7 another process has made the pod and not noted it yet, for a group that began long ago: it stays."""
    shared.kubelets.silent = True
    lose(shared)
    handled_events()
    made = uid_of_pod(shared)
    GpuGroup.objects.update(pod_uid="", started_at=database_now() - timedelta(hours=1))
    shared.world.reconcile()
    assert uid_of_pod(shared) == made
    assert GpuGroup.objects.get().retries == 0


def test_two_who_find_the_same_pod_in_vain_count_it_once(shared: Shares) -> None:
    """SHARE-7 events at once, in several processes, do not lengthen the back-off."""
    group = GpuGroup.objects.get()
    assert lose_group(group.pk, "gone", now=database_now(), actor="test")
    for _ in range(3):
        put_off(group.pk, now=database_now(), retries=0)
    group.refresh_from_db()
    assert group.retries == 1


def test_a_group_protected_meanwhile_is_not_lost(shared: Shares) -> None:
    """SHARE-7 what was seen of an older pod says nothing about the one that the group has now."""
    group = GpuGroup.objects.get()
    assert not lose_group(group.pk, "gone", pod_uid="an older one", now=database_now(), actor="test")
    assert state(shared) == "ready"


def test_what_a_reinstallation_finds(shared: Shares) -> None:
    """LEASE-6 SHARE-7 groups and sharers are read back; nothing is deleted, nobody new gets the GPU whole."""

    @atomic_retry
    def forget() -> None:
        Allocation.objects.all().delete()
        GpuGroup.objects.all().delete()
        Device.objects.update(
            core_used=0, memory_used=0, gpu_group="", gpu_group_open=False, revision=revisions.next_revision()
        )

    (name,) = shared.pods()
    forget()
    shared.world.reconcile(later=120)
    assert shared.pods() == [name]
    assert (shared.groups(), shared.grouped()) == ([("ready", 1)], ["GPU-n1-0"])
    assert shared.holds("one") == shared.holds("two") == ["GPU-n1-0"]
    assert shared.world.used("n1") == [100, 0, 0, 0]


def test_kais_own_groups_are_adopted(shares: Shares) -> None:
    """LEASE-6 DEV-9 what KAI-Scheduler placed is taken over with its shares: its pods name the group, its reservation
    pod the GPU.
    """
    server = shares.world.server
    group = "2f9a5c1e-kai"
    server.add_pod(
        "runai-reservation-gpu-n1-abc45",
        namespace="runai-reservation",
        labels={"app": "runai-reservation", "runai-gpu-group": group},
        annotations={"run.ai/reserve_for_gpu_index": "GPU-n1-1"},
        limits={GPU: "1"},
        node="n1",
        phase="Running",
    )
    for name in ("kai-1", "kai-2"):
        server.add_pod(
            name,
            namespace=NAMESPACE,
            labels={"runai-gpu-group": group},
            annotations={"gpu-fraction": "0.25"},
            node="n1",
            phase="Running",
        )
    shares.world.reconcile()
    assert shares.world.used("n1") == [0, 50, 0, 0]
    row = GpuGroup.objects.get(name=group)
    assert (row.state, row.uuids, row.pod_namespace) == ("ready", ["GPU-n1-1"], "runai-reservation")
    assert shares.place("ours") == ""
    assert (shares.holds("ours"), shares.label("ours")) == (["GPU-n1-1"], group), "there is room in KAI's group"


def test_an_orphan_goes_after_a_while(shares: Shares) -> None:
    """SHARE-7 a reservation pod that no group and no pod names is deleted, once it cannot belong to a bind any more."""
    shares.world.server.add_pod(
        "gpu-reservation-n1-left",
        namespace=RESERVATIONS,
        labels={"app": "gpuplane-reservation", "runai-gpu-group": "left"},
        limits={GPU: "1"},
        node="n1",
    )
    shares.world.reconcile()
    assert shares.pods() == ["gpu-reservation-n1-left"]
    shares.world.reconcile(later=120)
    assert shares.pods() == []


def test_the_kubelet_gave_a_guessed_gpu_to_another(shares: Shares) -> None:
    """DEV-8 SHARE-5 a plain pod whose GPU turns out to be the guess of a group that waits: the guess moves."""
    server = shares.world.server
    shares.kubelets.silent = True
    shares.kubelets.choose("GPU-n1-1")
    server.add_pod("plain", namespace=NAMESPACE, limits={GPU: "1"})
    assert shares.world.filter("plain") == "n1"
    assert shares.world.bind("plain", "n1") == ""
    assert shares.holds("plain") == ["GPU-n1-0"], "a guess"
    shares.kubelets.choose("GPU-n1-0")
    shares.kubelets.silent = False
    assert shares.place("train") == ""
    assert shares.holds("train") == shares.sees("train") == ["GPU-n1-0"]
    assert shares.holds("plain") != ["GPU-n1-0"], "the kubelet gave that one to the reservation pod"
    assert sorted(shares.world.used("n1")) == [0, 0, 50, 100]
    shares.world.reconcile()
    (plain,) = shares.holds("plain")
    assert shares.world.leases()[f"gpu-n1-{plain[-1]}"].startswith(f"{NAMESPACE}/plain/")


def test_a_guess_goes_to_a_gpu_that_is_large_enough(shares: Shares, kubelets_record: Any) -> None:
    """DEV-8 SHARE-5 on a node of several models the hold is not lost because the first free GPU does not fit."""
    held = shares.pod("train", fraction="", gpu_memory="40000")
    assert shares.world.filter("train") == "n1"
    guess = AllocationDevice.objects.get(allocation__pod_uid=held, live=True)
    shares.world.server.add_pod("plain", namespace=NAMESPACE, limits={GPU: "1"})
    assert shares.world.filter("plain") == "n1"
    assert shares.world.bind("plain", "n1") == ""
    others = Device.objects.exclude(uuid__in=[guess.uuid, *shares.holds("plain")]).order_by("minor")
    small, large = others
    Device.objects.filter(pk=small.pk).update(memory_bytes=2**30)
    uid = shares.world.server.pods[NAMESPACE, "plain"]["metadata"]["uid"]
    kubelets_record("n1", {uid: [guess.uuid]})
    assert shares.world.reconcile().corrected == 1
    assert shares.holds("plain") == [guess.uuid]
    guess.refresh_from_db()
    assert (guess.live, guess.uuid, guess.allocation.state) == (True, large.uuid, "held")


def test_a_gpu_that_the_record_gives_to_another_is_not_taken(shares: Shares, kubelets_record: Any) -> None:
    """SHARE-5 LEASE-2 a UUID that a plain pod has by the record: the bind fails, the pod keeps its GPU."""
    server = shares.world.server
    server.add_pod("plain", namespace=NAMESPACE, limits={GPU: "1"})
    assert shares.world.filter("plain") == "n1"
    assert shares.world.bind("plain", "n1") == ""
    (plain,) = shares.holds("plain")
    uid = server.pods[NAMESPACE, "plain"]["metadata"]["uid"]
    kubelets_record("n1", {uid: [plain]})
    shares.kubelets.lie = plain
    error = shares.place("train")
    assert "gave to another pod before" in error
    assert shares.holds("plain") == [plain]
    assert (shares.groups(), shares.pods()) == ([], [])


def test_a_forged_annotation_on_a_ready_group(shared: Shares) -> None:
    """SHARE-7 a reservation pod that suddenly names another GPU no longer protects: sharers keep the one they have."""
    (name,) = shared.pods()
    shared.kubelets.tell(name, "GPU-n1-3")
    shared.world.reconcile()
    assert state(shared) == "unprotected"
    assert shared.holds("one") == ["GPU-n1-0"]
    body = {"metadata": {"annotations": {"run.ai/reserve_for_gpu_index": "GPU-n1-0"}}}
    shared.world.server.store.patch(PODS, RESERVATIONS, name, body, content_type=MERGE)
    shared.world.reconcile()
    assert state(shared) == "ready"


def test_a_hold_of_before_begins_no_group_while_the_node_is_put_off(shares: Shares, settings: Settings) -> None:
    """SHARE-5 no endless retries: a pod that was filtered before the node failed does not make the next pod there."""
    settings.GPUPLANE_RESERVATION_SECONDS = 1
    shares.pod("held", fraction="0.7")
    assert shares.world.filter("held") == "n1"
    shares.kubelets.refuses = True
    assert "no GPU of n1 could be reserved" in shares.place("refused")
    assert "takes nobody new" in shares.world.bind("held", "n1")
    assert (shares.groups(), shares.pods()) == ([], [])
    assert len(shares.kubelets.refused) == 1
