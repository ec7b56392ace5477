"""The fleet as a scenario: what is held there is held in the what-if."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from django.test import Client
from django.utils import timezone

from access.actors import SYSTEM, Actor
from access.choices import Role
from access.errors import TooLarge
from access.selectors import actor_of
from access.tokens import issue
from allocations.live_scenario import HIDDEN, live_scenario, scenario_text
from allocations.models import Allocation
from allocations.scenario import Limits, Result, parse_scenario, read_scenario, run_scenario
from claims.kinds import QUEUE
from claims.services import manifest_create
from nodes.choices import NodeState
from nodes.models import Device, Node
from tests.extender import bound, filtered, pod_manifest
from tests.factories import DeviceFactory, GpuClaimFactory, NodeFactory, UserFactory

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]


THIRD = {"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory-ratio": "30"}


@pytest.fixture
def fleet(ledger_db: Any) -> Node:
    """A whole GPU, shares by core and by memory, an RDMA device, pods of two namespaces; a second node is cordoned."""
    node = NodeFactory(name="n1", gpus=4, labels={"rack": "a"}, taints=[{"key": "gpu", "effect": "NoSchedule"}])
    DeviceFactory(node=node, type="rdma", minor=0, uuid="mlx5_0", model="", memory_bytes=0)
    Device.objects.filter(node=node, minor=3, type="gpu").update(healthy=False)
    sick = NodeFactory(name="n2", gpus=1)
    Node.objects.filter(pk=sick.pk).update(state=NodeState.NOT_READY)
    manifest_create(
        QUEUE,
        manifest={"metadata": {"name": "lab"}, "spec": {"namespaces": ["research"], "quotas": [{"deserved": 1}]}},
        actor=SYSTEM,
        now=timezone.now(),
    )
    GpuClaimFactory(namespace="secret", name="own")
    pods = [
        pod_manifest("whole", namespace="secret", claim="own"),
        pod_manifest(
            "core",
            namespace="secret",
            resources={"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory-ratio": "30"},
        ),
        pod_manifest("memory", namespace="secret", resources={"koordinator.sh/gpu-memory": "7Gi"}),
        pod_manifest("net", namespace="secret", resources={"koordinator.sh/rdma": "50"}),
    ]
    for pod in pods:
        pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        assert bound(pod, filtered(pod, ["n1"])) == ""
    Allocation.objects.filter(pod_name__in=["whole", "net"]).update(namespace="research", pod_priority=7)
    return node


def used(result: Result) -> dict[str, tuple[int, int]]:
    return {
        one.uuid: (one.core_used, one.memory_used or 0)
        for devices in result.fleet.values()
        for one in devices
        if one.core_used or one.memory_used
    }


def ledger() -> dict[str, tuple[int, int]]:
    rows = Device.objects.values_list("uuid", "core_used", "memory_used")
    return {uuid: (core, memory) for uuid, core, memory in rows if core or memory}


@pytest.mark.parametrize("namespaces", [None, frozenset({"research"}), frozenset()], ids=["all", "one", "none"])
def test_holders_in_a_live_scenario(fleet: Node, namespaces: frozenset[str] | None) -> None:
    """VIEW-4 to the byte, whoever looks; pods that one does not see have no name, and keep their queue."""
    actor = Actor("vera", Role.VIEWER, namespaces)
    scenario = live_scenario(actor=actor, limits=Limits())
    result = run_scenario(parse_scenario(scenario))
    assert result.problems == ()
    assert used(result) == ledger()
    assert len(ledger()) == 3
    names = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in scenario["pods"]}
    text = json.dumps(scenario["pods"])
    if namespaces is None:
        assert names == {("research", "whole"), ("research", "net"), ("secret", "core"), ("secret", "memory")}
    else:
        assert "secret" not in text
        assert ("research" in {space for space, _ in names}) == bool(namespaces)
        assert HIDDEN in {space for space, _ in names}
    assert result.queues["lab"][0].allocated == 1


def test_as_text(fleet: Node) -> None:
    """VIEW-4 YAML that is read back the same."""
    scenario = live_scenario(actor=SYSTEM, limits=Limits())
    text = scenario_text(scenario)
    assert yaml.safe_load(text) == scenario
    parsed, read = parse_scenario(scenario), read_scenario(text)
    assert (parsed.nodes, parsed.pods, parsed.claims) == (read.nodes, read.pods, read.claims)
    shapes = {node.name: node for node in read_scenario(text).nodes}
    assert (shapes["n2"].unschedulable, shapes["n1"].labels, len(shapes["n1"].links)) == (True, {"rack": "a"}, 6)
    assert [device.healthy for device in shapes["n1"].devices if device.type == "gpu"] == [True, True, True, False]


def test_a_fleet_that_is_too_large(fleet: Node) -> None:
    """VIEW-4 a clear refusal that names what there is too much of."""
    with pytest.raises(TooLarge, match="the fleet has 2 nodes, and at most 1 are taken here"):
        live_scenario(actor=SYSTEM, limits=Limits(nodes=1))
    with pytest.raises(TooLarge, match="4 pods"):
        live_scenario(actor=SYSTEM, limits=Limits(pods=3))


def test_one_press(fleet: Node) -> None:
    """VIEW-4 the page fills the form with it, a pod more is decided about, and REST takes what REST gave."""
    user = UserFactory(namespaces=["research"])
    page = Client()
    page.force_login(user)
    assert "?from=fleet" in page.get("/simulate/").content.decode()
    filled = page.get("/simulate/?from=fleet")
    text = filled.content.decode()
    assert "GPU-n1-0" in text
    assert "secret" not in text

    headers = {"Authorization": f"Bearer {issue(user)}"}
    scenario = Client().get("/api/v1/simulations/", headers=headers).json()
    assert scenario == live_scenario(actor=actor_of(user), limits=Limits())
    scenario["pods"].append(pod_manifest("new", resources={"nvidia.com/gpu": "1"}))
    answer = Client().post("/api/v1/simulations/", scenario, content_type="application/json", headers=headers)
    assert answer.status_code == 200, answer.content
    (decision,) = answer.json()["decisions"]
    assert (decision["pod"], decision["node"]) == ("research/new", None)


def test_a_changed_fleet_beside_today(fleet: Node) -> None:
    """VIEW-7 loaded by one press; with a node, a queue and a pod more the answer stands beside that of today."""
    page = Client()
    page.force_login(UserFactory(role=Role.ADMIN))
    loaded = page.get("/simulate/?from=fleet")
    assert 'name="beside" value="fleet" checked' in loaded.content.decode()
    scenario = yaml.safe_load(loaded.context["text"])
    new = {"minor": 0, "type": "gpu", "uuid": "GPU-new-0", "model": "H100", "memory": "80Gi"}
    scenario["nodes"].append({"name": "new", "devices": [new]})
    scenario["queues"].append({"metadata": {"name": "extra"}, "spec": {"quotas": [{"deserved": 1}]}})
    pod = pod_manifest("try-me", resources={"nvidia.com/gpu": "1"})
    pod["metadata"]["labels"] = {"gpu.scheduling/queue": "extra"}
    scenario["pods"].append(pod)

    form = {"scenario": json.dumps(scenario), "beside": "fleet"}
    today = loaded.context["today"]
    assert "GPU-n1-0" in loaded.content.decode().partition('name="today"')[2].partition("</textarea>")[0]
    NodeFactory(name="meanwhile", gpus=2)  # is no part of the change
    assert page.post("/simulate/", form).context["beside"].devices == (8, 7)
    answer = page.post("/simulate/", form | {"today": today})
    assert answer.status_code == 200
    found = answer.context["beside"]
    assert (found.used, found.devices) == ((3, 4), (6, 7))
    assert [(one.name, one.today, one.then) for one in found.nodes] == [("new", None, (1, 1))]
    queues = {one.queue: (one.today, one.then) for one in found.queues}
    assert queues["extra"] == (None, (1, 1))
    assert queues["lab"][0] == queues["lab"][1]
    assert [(one.pod, one.today, one.then) for one in found.pods] == [("research/try-me", "", "new")]
    assert "Compared with the present fleet" in answer.content.decode()

    alone = page.post("/simulate/", {"scenario": json.dumps(scenario)})
    assert "beside" not in alone.context
    assert "Compared with the present fleet" not in alone.content.decode()
