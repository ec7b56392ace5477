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
from audit.clock import database_now
from nodes.checkpoints import Given, checkpoint_put
from nodes.models import Device, Node
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
    cluster = world.outside.cluster
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
    """DEV-11 a cluster with running and waiting pods of another scheduler is taken over, step by step; each holds once it is done."""
    world.server.add_node("n1", labels={"nvidia.com/gpu.present": "true"})
    uid = runs(world, "theirs")
    world.server.add_pod("waits", namespace=NAMESPACE, limits={"nvidia.com/gpu": "1"})
    pod = f"pod {NAMESPACE}/"
    assert missing(world) == {
        "webhooks": tuple(f"webhook {name} is not configured" for name in WEBHOOKS),
        "nodes": ("node n1 has GPUs, and no agent or inventory has told of its devices",),
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
    record = [Given(uid, "main", "nvidia.com/gpu", (device,))]
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
        (unknown_node, {"nodes": "node n3 has GPUs, and no agent or inventory has told of its devices"}),
        (unlabelled, {"namespaces": f"namespace {NAMESPACE} is not labelled"}),
        (twelve_waiting, {"pending": f"pod {NAMESPACE}/w00 waits for scheduler default-scheduler"}),
    ],
)
def test_what_is_missing_is_named(ready: World, change: Callable[[World], None], want: dict[str, str]) -> None:
    """DEV-11 step by step."""
    change(ready)
    found = missing(ready)
    assert {name: told[0] for name, told in found.items()} == want
    assert all(len(told) <= 11 for told in found.values())
    if change is twelve_waiting:
        assert found["pending"][-1] == "and 2 more"


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
