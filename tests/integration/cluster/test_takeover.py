"""`manage.py takeover --check`: each step by itself, missing and done; the whole way through a live cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from access.actors import SYSTEM
from allocations.takeover import TITLES, WEBHOOKS, takeover_steps
from nodes.checkpoints import CheckpointGrant, checkpoint_put
from nodes.models import Device, Node
from storage.clock import database_now
from tests.fakes.apikinds import MUTATING, NAMESPACES, NODES, PODS, VALIDATING
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World

SELECTOR = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "left-alone"]}


def hooks(world: World, *names: str, scope: str = "everywhere") -> None:
    """The chart's configurations, with these webhooks."""
    for kind, words in ((MUTATING, ("takeover", "mutate")), (VALIDATING, ("validate",))):
        listed = [
            {"name": name, "namespaceSelector": {"matchExpressions": [SELECTOR]}}
            for name in names
            if name.startswith(words)
        ]
        manifest = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": "gpuplane", "annotations": {"gpu.scheduling/scope": scope}},
            "webhooks": listed,
        }
        world.server.store.create(kind, "", manifest)


def missing(world: World) -> dict[str, tuple[str, ...]]:
    """Step → what is missing, of the steps that do not hold."""
    cluster = world.backends.cluster
    assert cluster is not None
    steps = takeover_steps(cluster)
    assert [step.name for step in steps] == list(TITLES)
    assert all(step.advice for step in steps)
    return {step.name: step.missing for step in steps if not step.holds}


def label(world: World, **labels: str) -> None:
    body = {"metadata": {"labels": {f"gpu.scheduling/{key}": value for key, value in labels.items()}}}
    world.server.store.patch(NAMESPACES, "", NAMESPACE, body, content_type=MERGE)


def runs(world: World, name: str, **options: Any) -> str:
    made = world.server.add_pod(
        name, namespace=NAMESPACE, node="n1", phase="Running", limits={"nvidia.com/gpu": "1"}, **options
    )
    return str(made["metadata"]["uid"])


@pytest.fixture
def ready(world: World) -> World:
    """A cluster in which every step holds but the one that a test undoes."""
    hooks(world, *WEBHOOKS)
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    label(world, takeover="enabled")
    world.place("first", claim="one")
    assert missing(world) == {}
    return world


def test_the_whole_way(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """DEV-11 a cluster with running and waiting pods of another scheduler is taken over, step by step; each holds once
    it is done.
    """
    world.server.add_node("n1", labels={"nvidia.com/gpu.present": "true"})
    uid = runs(world, "theirs")
    world.server.add_pod("waits", namespace=NAMESPACE, limits={"nvidia.com/gpu": "1"})
    pod = f"pod {NAMESPACE}/"
    assert missing(world) == {
        "webhooks": tuple(f"webhook {name} is not configured" for name in WEBHOOKS),
        "nodes": ("node n1 has GPUs, and no agent or inventory has reported its devices",),
        "pods": (f"{pod}theirs runs on n1 with devices that the ledger does not know",),
        "pending": (f"{pod}waits waits for scheduler default-scheduler",),
        "namespaces": (f"namespace {NAMESPACE} is not labelled",),
        "placed": ("no pod has been placed by gpuplane yet",),
        "guard": ("the webhooks look only at pods that are meant for gpuplane",),
    }
    with pytest.raises(SystemExit, match="1"):
        call_command("takeover", "--check")
    told = capsys.readouterr().out
    assert "1. MISSING  gpuplane's webhooks are in place" in told
    assert "→ kubectl label namespace <name> gpu.scheduling/takeover=enabled" in told

    hooks(world, *WEBHOOKS, scope="ours")
    world.node("n1", gpus=2, in_cluster=False)
    assert missing(world)["checkpoints"] == (
        "node n1 runs pods with devices, and its kubelet's checkpoint is not known",
    )
    device = Device.objects.filter(node__name="n1").order_by("minor")[1].uuid
    record = [CheckpointGrant(uid, "main", "nvidia.com/gpu", (device,))]
    checkpoint_put(node_name="n1", entries=record, actor=SYSTEM, now=database_now())
    world.reconcile()
    assert world.used("n1") == [0, 100]
    world.remove("waits")
    label(world, takeover="enabled")
    assert set(missing(world)) == {"placed", "guard"}

    world.claim("one", count=1)
    world.place("first", claim="one")
    assert world.used("n1") == [100, 100]
    for kind in (MUTATING, VALIDATING):
        body = {"metadata": {"annotations": {"gpu.scheduling/scope": "everywhere"}}}
        world.server.store.patch(kind, "", "gpuplane", body, content_type=MERGE)
    assert missing(world) == {}
    call_command("takeover", "--check")
    assert "MISSING" not in capsys.readouterr().out
    call_command("takeover", "--check", "--format", "json")
    steps = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["holds"]) for one in steps] == [(name, True) for name in TITLES]


def opted_out(world: World) -> None:
    world.server.add_pod(
        "theirs", namespace=NAMESPACE, limits={"nvidia.com/gpu": "1"}, labels={"gpu.scheduling/takeover": "disabled"}
    )


def left_alone(world: World) -> None:
    world.server.add_namespace("left-alone")
    world.server.add_pod("theirs", namespace="left-alone", limits={"nvidia.com/gpu": "1"})


def finished(world: World) -> None:
    runs(world, "over")
    world.finish("over")


def waits_for_ours(world: World) -> None:
    world.server.add_pod(
        "mine", namespace=NAMESPACE, limits={"nvidia.com/gpu": "1"}, spec={"schedulerName": "gpu-scheduler"}
    )


@pytest.mark.parametrize("change", [opted_out, left_alone, finished, waits_for_ours])
def test_what_stops_nobody(ready: World, change: Callable[[World], None]) -> None:
    """DEV-11 pods that opted out, or are in a namespace left alone, or have ended, or wait for us."""
    change(ready)
    assert missing(ready) == {}


def silent(world: World) -> None:
    Node.objects.filter(name="n1").update(state="suspect", problem="its agent is silent")


def another_plugin(world: World) -> None:
    world.server.add_node("n2")
    world.node("n2", gpus=1, in_cluster=False)
    body = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
    world.server.store.patch(NODES, "", "n2", body, content_type=MERGE, subresource="status")


def unknown_node(world: World) -> None:
    world.server.add_node("n3")
    body = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
    world.server.store.patch(NODES, "", "n3", body, content_type=MERGE, subresource="status")


def unlabelled(world: World) -> None:
    label(world, takeover="disabled")


def twelve_waiting(world: World) -> None:
    for number in range(12):
        world.server.add_pod(f"w{number:02}", namespace=NAMESPACE, limits={"nvidia.com/gpu": "1"})


@pytest.mark.parametrize(
    ("change", "want"),
    [
        (silent, {"nodes": "node n1 is suspect: its agent is silent"}),
        (another_plugin, {"device-plugins": "node n2 is in mode exclusive, and a device plugin hands out its GPUs"}),
        (unknown_node, {"nodes": "node n3 has GPUs, and no agent or inventory has reported its devices"}),
        (unlabelled, {"namespaces": f"namespace {NAMESPACE} is not labelled"}),
        (twelve_waiting, {"pending": f"pod {NAMESPACE}/w00 waits for scheduler default-scheduler"}),
    ],
    ids=[
        "a silent agent",
        "another device plugin",
        "a node without an inventory",
        "a namespace without the label",
        "pods that wait for another scheduler",
    ],
)
def test_a_step_names_what_it_misses(ready: World, change: Callable[[World], None], want: dict[str, str]) -> None:
    """DEV-11 step by step."""
    change(ready)
    found = missing(ready)
    assert {name: told[0] for name, told in found.items()} == want
    assert all(len(told) <= 11 for told in found.values())
    if change is twelve_waiting:
        assert found["pending"][-1] == "and 2 more"


def test_pods_left_alone_run_on_devices_all_the_same(ready: World) -> None:
    """DEV-11 LEASE-2 a system pod with a GPU is nobody's to take over, but its device has to be known."""
    ready.server.add_namespace("left-alone")
    ready.server.add_pod("driver", namespace="left-alone", node="n1", phase="Running", limits={"nvidia.com/gpu": "1"})
    told = "pod left-alone/driver runs on n1 with devices that the ledger does not know"
    found = missing(ready)
    assert found["pods"] == (told,)
    assert set(found) == {"pods", "checkpoints"}


def test_what_cannot_be_seen_does_not_hold(ready: World) -> None:
    """DEV-11 a pod that cannot be read, and webhooks that do not say whom they look at."""
    ready.server.store.create(
        PODS, NAMESPACE, {"metadata": {"name": "odd", "namespace": NAMESPACE}, "spec": {"priority": "high"}}
    )
    body = {"metadata": {"annotations": {"gpu.scheduling/scope": None}}}
    ready.server.store.patch(MUTATING, "", "gpuplane", body, content_type=MERGE)
    found = missing(ready)
    assert found["pods"] == (f"pod {NAMESPACE}/odd cannot be read",)
    assert set(found) == {"pods", "guard"}


def test_a_plugin_that_is_gone_leaves_a_zero(world: World) -> None:
    """DEV-5 DEV-11 the kubelet keeps the name with nothing under it: gpuplane advertises then, and not while there is
    something.
    """
    world.node("n1", gpus=2)
    status = {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"}}
    world.server.store.patch(NODES, "", "n1", {"status": status}, content_type=MERGE, subresource="status")
    world.reconcile()
    assert "nvidia.com/gpu" not in world.server.nodes["n1"]["metadata"]["annotations"]["gpu.scheduling/advertised"]
    gone = {"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}}
    world.server.store.patch(NODES, "", "n1", {"status": gone}, content_type=MERGE, subresource="status")
    world.reconcile()
    assert world.server.nodes["n1"]["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" in world.server.nodes["n1"]["metadata"]["annotations"]["gpu.scheduling/advertised"]


def test_several_pods_on_a_gpu_are_never_more_than_the_node_says(world: World, settings: Settings) -> None:
    """DEV-5 with a split, a sick GPU is not withdrawn from what counts pods while others run on the rest."""
    settings.GPUPLANE_GPU_SPLIT = 2
    world.node("n1", gpus=2)
    for number in range(3):
        name = f"shares-{number}"
        world.server.add_pod(name, namespace=NAMESPACE, limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"})
        assert world.filter(name) == "n1"
        assert world.bind(name, "n1") == ""
    Device.objects.filter(node__name="n1", minor=1).update(healthy=False)
    world.reconcile()
    assert world.server.nodes["n1"]["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    for number in range(3):
        world.finish(f"shares-{number}")
    world.reconcile()
    world.reconcile()
    assert world.server.nodes["n1"]["status"]["allocatable"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(
    "limits", [{}, {"nvidia.com/gpu": "1"}], ids=["a pod that asks for nothing", "a pod that asks for one"]
)
def test_nobody_takes_devices_by_anothers_words(world: World, limits: dict[str, str]) -> None:
    """DEV-9 while a cluster is taken over others' results are not guarded: they count for no more than the pod asks."""
    world.node("n1", gpus=4)
    uuids = Device.objects.filter(node__name="n1").values_list("uuid", flat=True)
    planted = ";".join(f"{uuid},NVIDIA,1000,10:" for uuid in uuids)
    annotations = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": f"{planted};"}
    world.server.add_pod(
        "greedy", namespace=NAMESPACE, node="n1", phase="Running", limits=limits, annotations=annotations
    )
    done = world.reconcile()
    assert (done.adopted, world.used("n1")) == (0, [0, 0, 0, 0])
    assert "names devices that the pod does not ask for" in world.told("reconcile.difference")[0]


def test_a_plugin_node_may_have_a_plugin(ready: World) -> None:
    another_plugin(ready)
    Node.objects.filter(name="n2").update(mode="device-plugin")
    assert missing(ready) == {}


def test_without_the_label_of_pods(ready: World) -> None:
    """DEV-11 a pod of ours that lost its row is missing again."""
    ready.server.store.create(
        PODS,
        NAMESPACE,
        {
            "metadata": {"name": "lost", "namespace": NAMESPACE},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            },
        },
    )
    found = missing(ready)
    assert found["pods"] == (f"pod {NAMESPACE}/lost runs on n1 with devices that the ledger does not know",)


def test_the_steps_alone(capsys: pytest.CaptureFixture[str], settings: Settings) -> None:
    """Without --check nothing is asked of anybody."""
    settings.GPUPLANE_KUBECONFIG = ""
    call_command("takeover")
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(". ")[2].partition(":")[0] for line in told[:-1]] == list(TITLES)
    with pytest.raises(CommandError, match="there is no cluster to take over"):
        call_command("takeover", "--check")
