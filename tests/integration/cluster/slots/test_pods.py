"""Slots as pods: on nodes without a runner Kubernetes starts a model that names an image."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from allocations.choices import LIVE
from allocations.models import Allocation
from inference.choices import State
from inference.models import Model, Slot
from nodes.models import Node
from tests.fakes.apikinds import PODS
from tests.fakes.apiserver import Fault
from tests.integration.cluster.comparing import differences
from tests.integration.cluster.conftest import MERGE
from tests.integration.cluster.slots.conftest import SlotsInCluster
from tests.slots import problems

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
HOME = "gpuplane-system"
NOWHERE = "no runner with the runtime vllm has the labels zone=b"


@pytest.fixture
def pods(slots: SlotsInCluster) -> SlotsInCluster:
    """n1 is a node of the cluster without a runner; one model has an image."""
    slots.cluster.node("n1", gpus=2)
    slots.cluster.reconcile()
    slots.model(
        runtime="vllm",
        memory=20,
        image="vllm:1",
        args=["--port", "$(SLOT_PORT)"],
        gpu_counts=[1],
        source="org/chat",
    )
    return slots


def names(slots: SlotsInCluster) -> list[str]:
    return sorted(name for namespace, name in slots.cluster.server.pods if namespace == HOME)


def leaving(slots: SlotsInCluster) -> list[str]:
    """Pods that were asked to go, which their kubelet then ends."""
    pods = slots.cluster.server.pods
    found = [name for name in names(slots) if pods[HOME, name]["metadata"].get("deletionTimestamp")]
    for name in found:
        slots.cluster.server.remove_pod(name, namespace=HOME)
    return found


def status(slots: SlotsInCluster, name: str, **said: Any) -> None:
    body = {"status": said}
    slots.cluster.server.store.patch(PODS, HOME, name, body, content_type=MERGE, subresource="status")


def runs(slots: SlotsInCluster) -> Slot:
    """A slot whose pod is ready."""
    slots.requests()
    slots.round()
    slot = Slot.objects.get(state=State.STARTING)
    ready = [{"type": "Ready", "status": "True"}]
    status(slots, slot.pod_name, phase="Running", podIP="10.0.0.7", conditions=ready)
    slots.round()
    slot.refresh_from_db()
    return slot


def test_a_slot_is_a_pod(pods: SlotsInCluster) -> None:
    """SLOT-1b the pod sees the GPUs that the ledger gave its slot, on their node; nobody else counts them twice."""
    slot = runs(pods)
    assert (slot.state, slot.address, slot.runner) == (State.READY, "10.0.0.7:8000", None)
    pod = pods.cluster.server.pods[HOME, slot.pod_name]
    (container,) = pod["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert pod["spec"]["nodeName"] == "n1"
    assert (container["image"], container["args"]) == ("vllm:1", ["--port", "$(SLOT_PORT)"])
    assert variables["NVIDIA_VISIBLE_DEVICES"] == f"GPU-n1-{slot.gpus[0]}"
    assert (variables["SLOT_SOURCE"], variables["SLOT_MEMORY_SHARE"]) == ("org/chat", "0.25")
    done = pods.cluster.reconcile()
    assert (done.adopted, done.differences) == (0, 0)
    assert Allocation.objects.filter(state__in=LIVE).count() == 1
    assert differences(pods.cluster.server) == []
    assert problems() == []


def test_the_pod_goes_with_its_slot(pods: SlotsInCluster) -> None:
    """SLOT-5b a slot with requests finishes them; its memory is free once its pod is gone."""
    slot = runs(pods)
    Slot.objects.update(active=1)
    Model.objects.all().delete()
    pods.round()
    pods.round()
    assert leaving(pods) == [], "it finishes its request"
    Slot.objects.update(active=0)
    pods.round()
    slot.refresh_from_db()
    assert slot.state == State.DRAINING
    assert leaving(pods) == [slot.pod_name]
    assert pods.used("n1")[slot.gpus[0]] == 20
    pods.round()
    slot.refresh_from_db()
    assert slot.state == State.STOPPED
    assert sum(pods.used("n1")) == 0
    assert pods.cluster.leases() == {}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted: disk", id="evicted"),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            },
            "exit code 137, OOMKilled",
            id="out of memory",
        ),
        pytest.param(None, "its pod is gone", id="deleted by somebody"),
    ],
)
def test_a_pod_that_ends(pods: SlotsInCluster, said: dict[str, Any] | None, reason: str) -> None:
    """SLOT-2 its slot fails with the reason, and the pod is cleared away."""
    slot = runs(pods)
    if said is None:
        pods.cluster.server.remove_pod(slot.pod_name, namespace=HOME)
    else:
        status(pods, slot.pod_name, **said)
    pods.round()
    slot.refresh_from_db()
    assert slot.state == State.FAILED
    assert slot.reason.endswith(reason)
    pods.round()
    pods.round()
    slot.refresh_from_db()
    assert slot.state == State.STOPPED
    assert slot.pod_name not in names(pods)


def test_what_a_pod_waits_for(pods: SlotsInCluster) -> None:
    """SLOT-7b an image that cannot be pulled is told, and is the reason when the slot is not ready in time."""
    pods.requests()
    pods.round()
    slot = Slot.objects.get()
    waits = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    status(pods, slot.pod_name, phase="Pending", containerStatuses=[{"state": waits}])
    pods.round()
    slot.refresh_from_db()
    assert (slot.state, slot.reason) == (State.STARTING, "ErrImagePull: no such image")
    pods.age(601)
    pods.round()
    slot.refresh_from_db()
    assert slot.reason == "it was not ready within 600 s: ErrImagePull: no such image"


def test_what_a_pod_waited_for_is_no_reason_once_it_is_ready(pods: SlotsInCluster) -> None:
    """SLOT-7b its page and REST do not say of a slot that serves that its container is being made."""
    pods.requests()
    pods.round()
    slot = Slot.objects.get()
    waits = {"waiting": {"reason": "ContainerCreating", "message": ""}}
    status(pods, slot.pod_name, phase="Pending", containerStatuses=[{"state": waits}])
    pods.round()
    assert Slot.objects.get().reason == "ContainerCreating"
    ready = [{"type": "Ready", "status": "True"}]
    status(pods, slot.pod_name, phase="Running", podIP="10.0.0.7", conditions=ready, containerStatuses=[])
    pods.round()
    slot.refresh_from_db()
    assert (slot.state, slot.reason) == (State.READY, "")


def test_killed_after_the_pod_was_made(pods: SlotsInCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-2 the next round finds it by its name; it is not made twice."""
    from inference import slot_pods

    pods.requests()
    with monkeypatch.context() as dying:
        dying.setattr(slot_pods, "_move", lambda *_, **__: False)
        pods.round()
    assert Slot.objects.get().state == State.PLANNED
    assert len(names(pods)) == 1
    pods.round()
    assert Slot.objects.get().state == State.STARTING
    assert len(names(pods)) == 1


@pytest.mark.parametrize(
    ("itself", "want"), [pytest.param(False, 1, id="before its pod"), pytest.param(True, 2, id="as its pod is made")]
)
def test_a_slot_that_is_stopped_while_pods_are_made(
    pods: SlotsInCluster, monkeypatch: pytest.MonkeyPatch, itself: bool, want: int
) -> None:
    """SLOT-2 it gets no pod, or its pod goes at once: its memory may be another's by then."""
    from inference import slot_pods

    made = slot_pods.manifest_of
    stopped: list[str] = []

    def stop(slot: Slot) -> dict[str, Any]:
        found = Slot.objects.filter(pk=slot.pk) if itself else Slot.objects.exclude(pk=slot.pk)
        if not stopped:
            stopped.extend(found.values_list("pod_name", flat=True))
            found.update(state=State.DRAINING, draining_at=slot.planned_at)
        return made(slot)

    Model.objects.update(parallel=1)
    pods.requests(count=2)
    monkeypatch.setattr(slot_pods, "manifest_of", stop)
    pods.round()
    assert len(names(pods)) == want
    assert leaving(pods) == stopped[: want - 1]
    assert Slot.objects.get(pod_name=stopped[0]).state == State.DRAINING


def test_a_pod_that_no_slot_stands_for(pods: SlotsInCluster) -> None:
    """SLOT-2 it is deleted."""
    slot = runs(pods)
    Slot.objects.all().delete()
    pods.round()
    assert leaving(pods) == [slot.pod_name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"image": ""}, "there are no runners", id="without an image"),
        pytest.param({"memory": 90 * 2**30}, "no GPU has 90Gi free; best n1/0 with 80Gi", id="too large"),
        pytest.param({"selector": {"zone": "b"}}, NOWHERE, id="elsewhere"),
    ],
)
def test_who_becomes_no_pod(pods: SlotsInCluster, change: dict[str, Any], reason: str) -> None:
    """SLOT-7b it waits with the reason."""
    Model.objects.update(**change)
    pods.requests()
    pods.round()
    assert names(pods) == []
    assert pods.waiting() == [("chat", False, reason)]


@pytest.mark.parametrize(
    ("change", "made"),
    [
        pytest.param({"unschedulable": True}, 0, id="cordoned"),
        pytest.param({"taints": [{"key": "team", "effect": "NoSchedule"}]}, 0, id="another team's"),
        pytest.param({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, 1, id="a GPU node"),
        pytest.param({"taints": None}, 1, id="without taints"),
    ],
)
def test_nodes_that_take_pods(pods: SlotsInCluster, change: dict[str, Any], made: int) -> None:
    """SLOT-1b a pod that is made past the scheduler keeps off the nodes that the scheduler would."""
    Node.objects.update(**change)
    pods.requests()
    pods.round()
    assert len(names(pods)) == made


def test_a_node_with_a_runner_has_no_pods(pods: SlotsInCluster) -> None:
    """SLOT-1b its runner starts the slot."""
    pods.runner("n1")
    pods.requests()
    pods.converge()
    slot = Slot.objects.get()
    assert (slot.state, slot.pod_name) == (State.READY, "")
    assert names(pods) == []


@pytest.mark.parametrize(
    ("node", "pod_is_ready", "want"),
    [
        pytest.param("not-ready", False, State.FAILED, id="dead"),
        pytest.param("not-ready", True, State.READY, id="its agent is silent, and the pod serves"),
        pytest.param("ready", False, State.READY, id="the runtime is busy"),
    ],
)
def test_its_node_dies(pods: SlotsInCluster, node: str, pod_is_ready: bool, want: State) -> None:
    """SLOT-2 its requests go elsewhere, no model is put off for it, and the memory counts until the pod is gone."""
    slot = runs(pods)
    Node.objects.update(state=node)
    ready = [{"type": "Ready", "status": str(pod_is_ready)}]
    status(pods, slot.pod_name, phase="Running", podIP="10.0.0.7", conditions=ready)
    pods.round()
    slot.refresh_from_db()
    assert slot.state == want
    assert (slot.own_failure, pods.used("n1")[slot.gpus[0]]) == (want == State.READY, 20)
    if want == State.FAILED:
        assert slot.reason == "node n1 is not ready, nor is its pod"
        pods.round()
        assert leaving(pods) == [slot.pod_name]


def test_its_node_goes(pods: SlotsInCluster) -> None:
    """SLOT-2 the slot is stopped, its memory and its pod are gone."""
    slot = runs(pods)
    Node.objects.update(state="gone")
    pods.round()
    slot.refresh_from_db()
    assert slot.state == State.STOPPED
    assert leaving(pods) == [slot.pod_name]
    assert not Allocation.objects.filter(state__in=LIVE).exists()


@pytest.mark.parametrize("code", [403, 500])
def test_a_deletion_that_is_refused_delays_no_other_slot(pods: SlotsInCluster, code: int) -> None:
    """SLOT-2 a webhook that forbids the deletion of one pod, or fails at it."""
    first = runs(pods)
    pods.cluster.server.faults.append(Fault("DELETE", f"/pods/{first.pod_name}", status=code, times=1000))
    Slot.objects.filter(pk=first.pk).update(state=State.DRAINING, draining_at=first.ready_at)
    for _ in range(4):
        pods.round()
    second = Slot.objects.exclude(pk=first.pk).get()
    ready = [{"type": "Ready", "status": "True"}]
    status(pods, second.pod_name, phase="Running", podIP="10.0.0.8", conditions=ready)
    pods.round()
    assert Slot.objects.get(pk=second.pk).state == State.READY
    pods.cluster.server.faults.clear()
    pods.round()
    assert leaving(pods) == [first.pod_name]


def test_a_runtime_that_answers_no_more_is_ended(pods: SlotsInCluster, settings: Settings) -> None:
    """SLOT-2 by its kubelet, for which nothing counts before the slot would have failed anyway."""
    settings.GPUPLANE_SLOT_START_SECONDS = 600
    slot = runs(pods)
    (container,) = pods.cluster.server.pods[HOME, slot.pod_name]["spec"]["containers"]
    asked = container["readinessProbe"]["httpGet"]
    assert asked == {"path": "/health", "port": 8000}
    starts, lives = container["startupProbe"], container["livenessProbe"]
    assert starts["httpGet"] == lives["httpGet"] == asked
    assert starts["periodSeconds"] * starts["failureThreshold"] == 660
    assert lives["periodSeconds"] * lives["failureThreshold"] == 30
    assert pods.cluster.server.pods[HOME, slot.pod_name]["spec"]["restartPolicy"] == "Never"
