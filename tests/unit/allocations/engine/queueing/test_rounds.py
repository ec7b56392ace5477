"""What holds of every decision, on random fleets, queues, gangs and pods; by scenarios."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocations.scenario import Result
from tests.unit.allocations.scenario.queues import gang, node, pod, queue, quota, run

QUEUES = ("a", "b", "c")


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Two to four nodes of four GPUs, two of three queues below one, running and waiting pods, two gangs."""
    nodes = [node(f"n{number}", 4, rack="xy"[number % 2]) for number in range(draw(st.integers(2, 4)))]
    amount = st.integers(0, 6)

    def entry(most: int) -> dict[str, Any]:
        deserved = draw(st.integers(0, most))
        limit = draw(st.none() | st.integers(deserved, deserved + 8))
        return quota(deserved, limit=limit, weight=draw(st.integers(0, 3)))

    queues = [queue("org", quota(draw(amount) + 3, limit=None, weight=1), priority=draw(st.sampled_from([100, 200])))]
    queues += [queue(name, entry(3), parent="org") for name in ("a", "b")]
    queues.append(queue("c", entry(6), queueingStrategy=draw(st.sampled_from(["BestEffortFIFO", "StrictFIFO"]))))
    free = [(one["name"], minor) for one in nodes for minor in range(4)]
    free = draw(st.permutations(free))
    pods = []
    for number in range(draw(st.integers(0, len(free)))):
        where, minor = free[number]
        pods.append(pod(f"run-{number}", on=f"{where}:{minor}", leaving=draw(st.integers(0, 7)) == 0, **_about(draw)))
    new = range(draw(st.integers(1, 8)))
    pods += [pod(f"new-{number}", draw(st.sampled_from([1, 1, 2, 4])), **_about(draw)) for number in new]
    topology = {"topology": {draw(st.sampled_from(["required", "preferred"])): "rack"}}
    gangs = [gang("ring", draw(st.integers(1, 3)), **topology), gang("star", 2)]
    return {"nodes": nodes, "queues": queues, "gangs": gangs, "pods": pods}


def _about(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "queue": draw(st.sampled_from(QUEUES)),
        "priority": draw(st.integers(0, 2)),
        "preemptible": draw(st.integers(0, 3)) > 0,
        "gang": draw(st.sampled_from(["", "", "ring", "star"])),
    }


@given(scenario=scenarios())
def test_every_decision(scenario: dict[str, Any]) -> None:
    """VIEW-4 no device twice, no limit passed, all of a gang or none, nobody evicted who may not be or for nothing."""
    result = run(**scenario)
    manifests = {f"default/{one['metadata']['name']}": one for one in scenario["pods"]}
    gone = {one.pod for one in result.evictions or ()}
    _check_devices(result, manifests, gone)
    _check_queues(result, scenario, manifests, gone)
    _check_gangs(result, scenario, manifests)
    takers = {one.taker for one in result.evictions or ()}
    served = {one.pod for one in result.decisions if one.node is not None}
    served |= {f"default/{_gang(manifests[name])}" for name in served}
    assert takers <= served
    for name in gone:
        assert manifests[name]["spec"].get("nodeName")
        assert "gpu.scheduling/preemptible" not in manifests[name]["metadata"]["labels"]
        assert "deletionTimestamp" not in manifests[name]["metadata"]
    assert all(one.summary for one in result.decisions)


def _check_devices(result: Result, manifests: dict[str, Any], gone: set[str]) -> None:
    holders: defaultdict[str, list[str]] = defaultdict(list)
    for name, manifest in manifests.items():
        allocated = manifest["metadata"].get("annotations", {}).get("gpu.scheduling/allocated")
        if allocated:
            where, _, minors = allocated.partition(":")
            for minor in minors.split(","):
                holders[f"GPU-{where}-{minor}"].append(name)
    for decision in result.decisions:
        for device in decision.devices:
            for holder in holders[device.uuid]:
                leaving = "deletionTimestamp" in manifests[holder]["metadata"] if holder in manifests else False
                assert holder in gone or leaving, f"{device.uuid} is given to {decision.pod} and {holder}"
                assert holder in decision.waits_for
    given = Counter(device.uuid for decision in result.decisions for device in decision.devices)
    assert set(given.values()) <= {1}


def _check_queues(result: Result, scenario: dict[str, Any], manifests: dict[str, Any], gone: set[str]) -> None:
    parents = {one["metadata"]["name"]: one["spec"].get("parent", "") for one in scenario["queues"]}
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    fixed: Counter[str] = Counter()
    fixed_before: Counter[str] = Counter()
    devices = {one.pod: len(one.devices) for one in result.decisions}
    for name, manifest in manifests.items():
        running = bool(manifest["spec"].get("nodeName"))
        if running and "deletionTimestamp" in manifest["metadata"]:
            continue
        count = 1 if running else devices[name]
        above = _queue(manifest, manifests)
        while above:
            stays = running and name not in gone
            before[above] += count if running else 0
            after[above] += count if stays or not running else 0
            if "gpu.scheduling/preemptible" in manifest["metadata"]["labels"]:
                fixed_before[above] += count if running else 0
                fixed[above] += count
            above = parents[above]
    for one in scenario["queues"]:
        name, (entry,) = one["metadata"]["name"], one["spec"]["quotas"]
        assert result.queues[name][0].allocated == after[name]
        if entry["limit"] is not None:
            assert after[name] <= max(entry["limit"], before[name])
        assert fixed[name] <= max(entry["deserved"], fixed_before[name])


def _queue(manifest: dict[str, Any], manifests: dict[str, Any]) -> str:
    """A gang is in the queue of its oldest pod."""
    named = _gang(manifest)
    oldest = next((one for one in manifests.values() if named and _gang(one) == named), manifest)
    return str(oldest["metadata"]["labels"]["gpu.scheduling/queue"])


def _gang(manifest: dict[str, Any]) -> str:
    return str(manifest["metadata"]["labels"].get("gpu.scheduling/gang", ""))


def _check_gangs(result: Result, scenario: dict[str, Any], manifests: dict[str, Any]) -> None:
    nodes = {one["name"]: one["labels"]["rack"] for one in scenario["nodes"]}
    served = {one.pod: one.node for one in result.decisions if one.node is not None}
    for one in scenario["gangs"]:
        name, spec = one["metadata"]["name"], one["spec"]
        members = [key for key, manifest in manifests.items() if _gang(manifest) == name]
        state = [
            key
            for key in members
            if manifests[key]["spec"].get("nodeName") and "deletionTimestamp" not in manifests[key]["metadata"]
        ]
        new = [key for key in members if key in served]
        assert not new or len(new) + len(state) >= spec["minMember"]
        if new and "required" in spec.get("topology", {}):
            beside = {nodes[manifests[key]["spec"]["nodeName"]] for key in state}
            values = {nodes[str(served[key])] for key in new}
            assert values <= beside if beside else len(values) == 1
