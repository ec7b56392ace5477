"""Waves of pods, the agents of nodes that come and go, and the schedulers and nodes around them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from kube.keys import NODEPOOL_LABEL
from simulator import node_agents as grown_module
from simulator import waves as module
from simulator.api import Api
from simulator.cluster.kinds import EVENTS, NODES, PODS, Object
from simulator.cluster.tokens import Tokens
from simulator.controllers import nodes_make
from simulator.default_scheduler import run_default_scheduler
from simulator.fleet import B200, make_fleet, make_node
from simulator.karpenter.pools import taint_of
from simulator.kubelets import run_kubelets
from simulator.node_agents import GrownNodes
from simulator.node_info import node_infos
from simulator.occupancy import Occupancy
from simulator.signals import Load, Meters, Signals
from simulator.waves import CREWS, Crew, Wave, Waves
from tests.unit.simulator.clusters import ClockedStore

FLEET = make_fleet(3)
WAVE = Wave("rush", 2, 0.01, claim={"devices": {"count": 1}}, selected=True)
CREW = Crew("burst", "burst", 0, 0, (WAVE,))


class Doors:
    """gpuplane: it admits everything and binds to the first node that it is asked about."""

    def __init__(self, store: ClockedStore) -> None:
        self.store = store
        self.asked: list[list[str]] = []
        self.claims: list[str] = []

    async def create_claim(self, manifest: Mapping[str, Any]) -> bool:
        self.claims.append(manifest["metadata"]["name"])
        return True

    async def review(self, path: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        assert path.startswith("/webhooks/pods/")
        assert pod["spec"]["schedulerName"] == "gpu-scheduler"
        return {"allowed": True}

    async def extender_filter(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
        self.asked.append(list(nodes))
        return {"NodeNames": list(nodes)[:1]}

    async def extender_bind(self, pod: Mapping[str, Any], node: str) -> str:
        self.store.bind_to(cast("Object", pod), node)
        return ""

    async def allocations_of_pod(self, pod_uid: str) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def store() -> ClockedStore:
    made = ClockedStore()
    nodes_make(made, FLEET)
    return made


@pytest.fixture
def doors(store: ClockedStore) -> Doors:
    return Doors(store)


@pytest.fixture
def occupancy() -> Occupancy:
    return Occupancy(Signals(FLEET, seed=1), fleet=FLEET)


@pytest.fixture
def waves(store: ClockedStore, doors: Doors, occupancy: Occupancy, monkeypatch: pytest.MonkeyPatch) -> Waves:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    return Waves(cast("Api", doors), store, occupancy, crew=CREW, rng=random.Random(1))


async def until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the waves tell nobody
            await asyncio.sleep(0.001)


async def test_a_wave_waits_for_its_node_runs_and_ends(waves: Waves, store: ClockedStore, doors: Doors) -> None:
    """Nobody is asked while kube-scheduler has no node by its own filters; with one, pods are bound and end."""
    work = asyncio.create_task(waves.run_once(WAVE))
    await until(lambda: len(store.list(EVENTS)) == WAVE.pods)
    (said,) = {pod["status"]["conditions"][0]["message"] for pod in store.list(PODS)}
    assert said == "0/3 nodes are available: 3 node has not the labels of the pod's nodeSelector."
    assert (doors.claims, doors.asked) == (["rush"], [])
    store.node("b200-1", labels={"pool": "burst"}, taints=[taint_of("burst")])
    await work
    assert doors.asked == [["b200-1"]] * WAVE.pods
    assert all("deletionTimestamp" in pod["metadata"] for pod in store.list(PODS))
    run_kubelets(store)
    assert store.list(PODS) == []


async def test_a_wave_that_nobody_serves_is_given_up(
    waves: Waves, store: ClockedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its users delete the pods."""
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.05)
    await waves.run_once(WAVE)
    assert store.list(PODS) == []


async def test_a_second_run_begins_anew(waves: Waves, store: ClockedStore) -> None:
    """Pods of an earlier one are deleted, those of others are not."""
    store.pod("rush-old", namespace="burst")
    store.pod("other", namespace="team")
    work = asyncio.create_task(waves.run())
    await until(lambda: len(store.list(PODS, "burst")) == WAVE.pods)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [pod["metadata"]["name"] for pod in store.list(PODS)] == ["other"]


@pytest.mark.parametrize("crew", CREWS, ids=lambda crew: crew.namespace)
def test_nobody_else_has_what_the_crews_ask_for(crew: Crew) -> None:
    """Every wave needs a node that is not there: by the model of its claim, or by the label that it selects."""
    labels = {node.kind.model for node in make_fleet(64)}, {node.labels["pool"] for node in make_fleet(64)}
    for wave in crew.waves:
        models = (wave.claim or {}).get("devices", {}).get("model", [])
        assert (models and not labels[0] & set(models)) or (wave.selected and crew.label not in labels[1])


async def test_agents_come_and_go_with_their_nodes(
    store: ClockedStore, occupancy: Occupancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each node of a NodePool that is ready, with a token for it."""
    running: dict[str, str] = {}
    models: list[str] = []

    class Stub:
        def __init__(self, node: Any, _index: int, *, token: str, **_: Any) -> None:
            self.name, running[node.name] = node.name, token
            models.append(node.kind.model)

        async def run(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                del running[self.name]

    monkeypatch.setattr(grown_module, "Agent", Stub)
    monkeypatch.setattr(grown_module, "START_SECONDS", (0.0, 0.0))
    tokens = Tokens(b"secret")
    grown = GrownNodes(store, tokens, Meters(Signals(FLEET, seed=1)), occupancy, url="http://gpuplane.test")
    work = asyncio.create_task(grown.run())
    store.node("b200-1", labels={NODEPOOL_LABEL: "b200"})
    await until(lambda: "b200-1" in running)
    assert list(running) == ["b200-1"], "the fleet's own nodes have their agents"
    assert tokens.review(running["b200-1"], ["gpuplane"])["authenticated"]
    store.delete(NODES, "", "b200-1")
    store.node("b200-1", labels={NODEPOOL_LABEL: "l4"})
    await until(lambda: len(models) == 2)
    assert models == ["B200", "L4"], "a node that is made again under its name has another agent"
    store.delete(NODES, "", "b200-1")
    await until(lambda: not running)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


def test_meters_of_nodes_that_come() -> None:
    """A GPU of such a node is as busy as its holders make it; the fleet's own are not touched."""
    fleet = Signals(FLEET, seed=1)
    meters = Meters(fleet)
    node = make_node(B200, "b200-1", "b200")
    signals = meters.add(node, seed=2)
    meters.hold(node.uuids[0], [Load(core=1.0, memory=0.5, peers=1, period_seconds=20)])
    for _ in range(30):
        meters.step(1.0)
    utilisation = signals.of_node(0)["utilisation_percent"]
    assert utilisation[0] is not None
    assert utilisation[0] > 40
    assert utilisation[1] is not None
    assert utilisation[1] < 10
    assert not fleet.loads
    meters.remove("b200-1")
    before = signals.of_node(0)
    meters.step(1.0)
    assert signals.of_node(0) == before


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({}, "n", id="it fits"),
        pytest.param({"schedulerName": "gpu-scheduler"}, "", id="another scheduler's"),
        pytest.param({"schedulingGates": [{"name": "g"}]}, "", id="gated"),
        pytest.param({"nodeSelector": {"a": "b"}}, "", id="a selector"),
        pytest.param({"nodeSelector": {"kind": "x"}}, "n", id="a selector that matches"),
    ],
)
def test_the_default_scheduler(spec: dict[str, Any], want: str) -> None:
    """It binds what fits, and calls the rest of its own unschedulable."""
    store = ClockedStore()
    store.node("n", {"nvidia.com/gpu": "8"}, labels={"kind": "x"})
    store.pod("p", {"nvidia.com/gpu": "8"}, **spec)
    run_default_scheduler(store)
    pod = store.get(PODS, "team", "p")
    assert pod["spec"].get("nodeName", "") == want
    said = [one["status"] for one in pod["status"].get("conditions", [])]
    own = "schedulerName" not in spec and "schedulingGates" not in spec
    assert said == ([("True" if want else "False")] if own else [])


def test_what_is_bound_counts() -> None:
    """The second of two pods finds the node full; once the first is gone it is bound."""
    store = ClockedStore()
    store.node("n", {"nvidia.com/gpu": "8"})
    first, _ = store.pod("a", {"nvidia.com/gpu": "5"}), store.pod("b", {"nvidia.com/gpu": "5"})
    run_default_scheduler(store)
    assert store.get(PODS, "team", "b")["status"]["conditions"][0]["message"] == (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    )
    assert node_infos(store)["n"].free["nvidia.com/gpu"] == 3000
    store.delete(PODS, "team", first["metadata"]["name"])
    run_default_scheduler(store)
    assert store.get(PODS, "team", "b")["spec"]["nodeName"] == "n"


def test_a_smaller_fleet_loses_its_other_nodes() -> None:
    """Those that Karpenter made stay."""
    store = ClockedStore()
    nodes_make(store, make_fleet(6))
    store.node("b200-1", labels={NODEPOOL_LABEL: "b200"})
    nodes_make(store, FLEET)
    names = {node["metadata"]["name"] for node in store.list(NODES)}
    assert names == {"b200-1", *(node.name for node in FLEET)}
