"""The make-believe users and scheduler against a small stand-in for gpuplane's doors."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

import pytest

from simulator import workload as module
from simulator.api import Api, ServerAway
from simulator.cluster.kinds import PODS
from simulator.cluster.store import Store
from simulator.controllers import nodes_make
from simulator.fleet import make_fleet
from simulator.kubelets import run_kubelets
from simulator.occupancy import BUSIEST, Occupancy
from simulator.pods import DOOMED, TEMPLATES, SimPod, make_pod
from simulator.signals import Signals
from simulator.workload import Workload

FLEET = make_fleet(10)
RANKER = next(template for template in TEMPLATES if template.name == "ranker")


class Doors:
    """Whole GPUs only: each pod gets as many free GPUs of the first node that has them as its template says."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[str] = []
        self.claims: set[tuple[str, str]] = set()
        self.held: dict[str, dict[str, Any]] = {}
        self.away = 0
        self.refuse_bind = ""
        self.deny = ""
        self.asked: dict[str, int] = {}

    async def until_alive(self) -> None:
        self.calls.append("wait")
        self.away = 0

    async def claim_names(self) -> set[tuple[str, str]]:
        return set(self.claims)

    async def create_claim(self, manifest: Mapping[str, Any]) -> bool:
        self._called("claim")
        self.claims.add((manifest["metadata"]["namespace"], manifest["metadata"]["name"]))
        return True

    async def live_allocations(self) -> list[dict[str, Any]]:
        self._called("list")
        return list(self.held.values())

    async def allocations_of_pod(self, pod_uid: str) -> list[dict[str, Any]]:
        return [row for row in self.held.values() if row["pod_uid"] == pod_uid]

    def watch(self) -> None:
        """Release what pods that are gone held."""
        there = {pod["metadata"]["uid"] for pod in self.store.list(PODS)}
        self.held = {uid: row for uid, row in self.held.items() if row["pod_uid"] in there}

    async def review(self, path: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        self._called(path.rpartition("/")[2])
        if self.deny:
            return {"allowed": False, "status": {"message": self.deny}}
        if path.endswith("validate"):
            assert pod["spec"]["containers"][0]["env"]
            return {"allowed": True}
        assert "uid" not in pod["metadata"]
        patch = [{"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "CUDA_VISIBLE_DEVICES"}]}]
        return {
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }

    async def extender_filter(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
        self._called("filter")
        count = 99 if any(pod["metadata"]["name"].startswith(each.name) for each in DOOMED) else self._count(pod)
        node = next((node for node in nodes if len(self._free(node)) >= count), None)
        return {"NodeNames": [node] if node else [], "FailedNodes": {name: "full" for name in nodes if name != node}}

    async def extender_prioritize(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> list[dict[str, Any]]:
        self._called("prioritize")
        return [{"Host": node, "Score": 7} for node in nodes]

    async def extender_bind(self, pod: Mapping[str, Any], node: str) -> str:
        self._called("bind")
        if self.refuse_bind:
            return self.refuse_bind
        meta, uid = pod["metadata"], str(uuid4())
        gpus = self._free(node)[: self._count(pod)]
        self.held[uid] = _row(uid, meta["namespace"], meta["name"], meta["uid"], node, gpus)
        self.store.bind(meta["namespace"], meta["name"], {"metadata": {"uid": meta["uid"]}, "target": {"name": node}})
        return ""

    def _count(self, pod: Mapping[str, Any]) -> int:
        app = pod["metadata"]["labels"]["app"]
        return next(template.devices for template in TEMPLATES if template.name == app)

    def _free(self, node: str) -> list[str]:
        taken = {device["uuid"] for row in self.held.values() for device in row["devices"]}
        return [uuid for each in FLEET if each.name == node for uuid in each.uuids if uuid not in taken]

    def _called(self, what: str) -> None:
        if self.away:
            self.away -= 1
            raise ServerAway(what)
        self.calls.append(what)

    @property
    def busy(self) -> int:
        return sum(len(row["devices"]) for row in self.held.values())


def _row(uid: str, namespace: str, name: str, pod_uid: str, node: str, gpus: Sequence[str]) -> dict[str, Any]:
    devices = [{"uuid": uuid, "type": "gpu", "core": 100, "memory": 80 * 2**30} for uuid in gpus]
    return {
        "uid": uid,
        "state": "bound",
        "namespace": namespace,
        "pod": name,
        "pod_uid": pod_uid,
        "node": node,
        "devices": devices,
    }


@pytest.fixture
def store() -> Store:
    found = Store()
    nodes_make(found, FLEET)
    return found


@pytest.fixture
def doors(store: Store) -> Doors:
    return Doors(store)


@pytest.fixture
def occupancy() -> Occupancy:
    return Occupancy(Signals(FLEET, seed=1), fleet=FLEET)


@pytest.fixture
def workload(doors: Doors, occupancy: Occupancy) -> Workload:
    names = [node.name for node in FLEET]
    api = cast("Api", doors)
    return Workload(api, doors.store, occupancy, nodes=names, rng=random.Random(5))


async def _settle(workload: Workload) -> None:
    while workload._binding:
        await asyncio.gather(*workload._binding)


def _ranker() -> SimPod:
    return make_pod(RANKER, random.Random(3))


async def test_pod_goes_the_way_of_a_real_one(workload: Workload, doors: Doors, occupancy: Occupancy) -> None:
    await workload._new_pod(RANKER, doomed=False)
    await _settle(workload)
    assert doors.calls == ["mutate", "validate", "filter", "prioritize", "bind"]
    assert occupancy.busy == doors.busy == 1
    (allocation,) = doors.held
    workload._end_pod(allocation)
    run_kubelets(doors.store)
    doors.watch()
    assert (occupancy.busy, doors.held) == (0, {})


async def test_a_tenth_stays_free_however_many_come(workload: Workload, doors: Doors, occupancy: Occupancy) -> None:
    for _ in range(400):
        await workload._arrive_once()
        await _settle(workload)
        assert doors.busy <= BUSIEST * occupancy.size
    assert doors.busy >= 0.75 * occupancy.size
    for kind in {node.kind.model for node in FLEET}:
        uuids = {uuid for node in FLEET if node.kind.model == kind for uuid in node.uuids}
        taken = {device["uuid"] for row in doors.held.values() for device in row["devices"]}
        assert len(uuids & taken) <= BUSIEST * len(uuids)


async def test_pods_on_their_way_count(workload: Workload, doors: Doors, occupancy: Occupancy) -> None:
    """Binds in the background cannot push the fleet over its bound."""
    for _ in range(60):
        await workload._arrive_once()
    await _settle(workload)
    assert doors.busy <= BUSIEST * occupancy.size


async def test_doomed_pod_waits_and_is_given_up(
    workload: Workload, doors: Doors, occupancy: Occupancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = make_pod(DOOMED[0], random.Random(1), doomed=True)
    assert await workload.admit(pod)
    await workload._try(pod)
    assert list(workload._pending) == [pod.uid]
    assert (doors.busy, occupancy.room) == (0, occupancy.room)
    (waiting,) = doors.store.list(PODS)
    assert waiting["status"]["conditions"][0]["message"] == "0/10 nodes are available: 10 full."
    pod.give_up_at = 0.0
    await workload._try(pod)
    assert not workload._pending
    assert doors.store.list(PODS) == [], "its user deletes it"


async def test_denied_pod_never_reaches_the_scheduler(workload: Workload, doors: Doors) -> None:
    doors.deny = "gpu-core-alone"
    await workload._new_pod(RANKER, doomed=False)
    assert doors.calls == ["mutate"]
    assert doors.store.list(PODS) == []


async def test_refused_bind_is_tried_again_a_bounded_number_of_times(
    workload: Workload, doors: Doors, occupancy: Occupancy
) -> None:
    doors.refuse_bind = "lost race"
    pod = _ranker()
    await workload.admit(pod)
    for _ in range(module.BIND_ATTEMPTS + 2):
        await workload._try(pod)
        await _settle(workload)
        if pod.uid not in workload._pending:
            break
    assert doors.calls.count("bind") == module.BIND_ATTEMPTS
    assert occupancy.room == Occupancy(Signals(FLEET, seed=1), fleet=FLEET).room


async def test_second_run_takes_over_what_the_first_left(
    workload: Workload, doors: Doors, occupancy: Occupancy
) -> None:
    uuids = FLEET[0].uuids
    doors.held = {
        "a1": _row("a1", "recsys", "ranker-bcdfg", "u1", FLEET[0].name, uuids[:1]),
        "a2": _row("a2", "recsys", "somebody-elses", "u2", FLEET[0].name, uuids[1:3]),
        "a3": _row("a3", "bare-metal", "", "", FLEET[0].name, uuids[3:4]),
    }
    await workload.make_claims()
    await workload.adopt_running()
    assert occupancy.busy == 4
    assert set(workload._ends) == {"a1"}
    assert doors.claims


async def test_claims_that_are_there_are_left_alone(workload: Workload, doors: Doors) -> None:
    await workload.make_claims()
    doors.calls.clear()
    await workload.make_claims()
    assert "claim" not in doors.calls


async def test_allocation_that_ended_elsewhere_is_forgotten(
    workload: Workload, doors: Doors, occupancy: Occupancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await workload._new_pod(RANKER, doomed=False)
    await _settle(workload)
    doors.held.clear()
    await workload.adopt_running()
    assert occupancy.busy == 1, "a list made before the bind may miss it"
    monkeypatch.setattr(module, "YOUNG_SECONDS", -1.0)
    await workload.adopt_running()
    assert (occupancy.busy, workload._ends) == (0, {})


async def test_server_that_goes_away_is_waited_for(workload: Workload, doors: Doors) -> None:
    doors.away = 1
    await workload._lasting(workload.make_claims)
    assert doors.calls[0] == "wait"
    assert doors.claims


async def test_unknown_end_of_a_bind_is_found_by_the_next_comparison(
    workload: Workload, doors: Doors, occupancy: Occupancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(pod_uid: str) -> list[dict[str, Any]]:
        raise ServerAway(pod_uid)

    monkeypatch.setattr(doors, "allocations_of_pod", lost)
    await workload._new_pod(RANKER, doomed=False)
    await _settle(workload)
    assert occupancy.busy == 0
    await workload.adopt_running()
    assert occupancy.busy == doors.busy == 1
    assert len(workload._ends) == 1


async def test_a_pod_that_is_gone_is_not_scheduled(workload: Workload, doors: Doors) -> None:
    """Nobody filters for it, whatever its scheduler has queued."""
    pod = _ranker()
    await workload.admit(pod)
    doors.store.delete(PODS, "recsys", pod.manifest["metadata"]["name"])
    await workload._try(pod)
    assert doors.calls == ["mutate", "validate"]
    assert not workload._pending


async def test_pods_of_an_earlier_run_do_not_wait_for_ever(workload: Workload, doors: Doors) -> None:
    """Those that waited are deleted; those that run end later."""
    for name, node in (("ranker-waits", ""), ("ranker-runs", FLEET[0].name)):
        doors.store.create(PODS, "recsys", {"metadata": {"name": name}, "spec": {"nodeName": node}})
    doors.store.create(PODS, "elsewhere", {"metadata": {"name": "waits"}, "spec": {}})
    async with asyncio.timeout(5):
        work = asyncio.create_task(workload.run())
        while "list" not in doors.calls:  # noqa: ASYNC110 - the stand-in tells nobody
            await asyncio.sleep(0)
        work.cancel()
    names = {pod["metadata"]["name"] for pod in doors.store.list(PODS)}
    assert {"ranker-runs", "waits"} <= names
    assert "ranker-waits" not in names
