"""Scenarios with `pools`: which nodes are made, for whom, and why a pod waits for none."""

from __future__ import annotations

from typing import Any

import pytest

from access.errors import BadInput
from allocations.scenario import Result, parse_scenario
from allocations.scenario.result import ScalingResult
from tests.unit.allocations.scenario.queues import Manifest, gang, node, pod, pods, queue, quota, run, why

HALF = {"count": 1, "core": 50, "memoryRatio": 50}


def pool(name: str, gpus: int = 8, *, model: str = "H100", rdma: int = 0, links: Any = (), **fields: Any) -> Manifest:
    """A pool whose nodes have so many GPUs and NICs."""
    devices: list[Manifest] = [{"minor": minor, "model": model, "memory": "80Gi"} for minor in range(gpus)]
    devices += [{"minor": minor, "type": "rdma"} for minor in range(rdma)]
    return {"name": name, "node": {"devices": devices, "links": list(links)}, **fields}


def claim(name: str, **devices: Any) -> Manifest:
    """A GpuClaim."""
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def claimed(count: int, name: str, claim_name: str, **about: Any) -> list[Manifest]:
    """Pods `name-0`, … of a claim."""
    return [pod(f"{name}-{number}", claim=claim_name, **about) for number in range(count)]


def made(result: Result) -> list[tuple[str, int, list[str]]]:
    """(pool, GPUs, pods) of each node to be made."""
    assert isinstance(result.scaling, tuple)
    return [(one.pool, one.gpus, [name.removeprefix("default/") for name in one.pods]) for one in result.scaling]


def served(result: Result) -> dict[str, object]:
    """Pod → its pool, of those that wait."""
    return {one.pod.removeprefix("default/"): one.scaling for one in result.decisions if one.node is None}


def test_sixteen_halves_ask_for_eight_gpus() -> None:
    """SCALE-5 Shares are summed into whole GPUs, however they are spread on nodes that are there."""
    result = run(pools=[pool("h100")], claims=[claim("half", **HALF)], pods=claimed(16, "p", "half"))
    assert made(result) == [("h100", 8, [f"p-{number}" for number in range(16)])]
    assert set(served(result).values()) == {"h100"}
    spread = run(
        pools=[pool("h100")],
        claims=[claim("half", **HALF, policy="spread")],
        pods=claimed(16, "p", "half"),
        options={"share": "gpuspread"},
    )
    assert [one[1] for one in made(spread)] == [8]
    few = run(pools=[pool("h100", 4)], claims=[claim("half", **HALF)], pods=claimed(9, "p", "half"))
    assert [(one[0], one[1], len(one[2])) for one in made(few)] == [("h100", 4, 8), ("h100", 1, 1)]


def test_contiguous_fours_go_two_to_a_node() -> None:
    islands = [[low, high, 4] for high in range(8) for low in range(high) if low // 4 == high // 4]
    asked = claim("four", count=4, policy="contiguous", policyStrict=True)
    result = run(pools=[pool("h100", links=islands)], claims=[asked], pods=claimed(4, "p", "four"))
    assert made(result) == [("h100", 8, ["p-0", "p-1"]), ("h100", 8, ["p-2", "p-3"])]


@pytest.mark.parametrize(
    ("pools", "claims", "pods", "want_made"),
    [
        pytest.param(
            [pool("b", weight=1), pool("a", 4, weight=10)],
            [claim("one", count=1)],
            claimed(1, "p", "one"),
            [("a", 1, ["p-0"])],
            id="the higher weight first",
        ),
        pytest.param(
            [pool("a"), pool("b", 4)],
            [claim("three", count=3)],
            claimed(1, "p", "three"),
            [("b", 3, ["p-0"])],
            id="of equal weights the one with fewer GPUs in all",
        ),
        pytest.param(
            [pool("b", 4), pool("a", 8)],
            [claim("two", count=2)],
            claimed(4, "p", "two"),
            [("a", 8, ["p-0", "p-1", "p-2", "p-3"])],
            id="then by name: eight GPUs either way",
        ),
        pytest.param(
            [pool("a"), pool("b", 4)],
            [claim("three", count=3)],
            claimed(3, "p", "three"),
            [("b", 3, ["p-0"]), ("b", 3, ["p-1"]), ("b", 3, ["p-2"])],
            id="three nodes of four rather than two of eight",
        ),
        pytest.param(
            [pool("a", weight=10, max=1), pool("b", weight=1)],
            [claim("eight", count=8)],
            claimed(2, "p", "eight"),
            [("a", 8, ["p-0"]), ("b", 8, ["p-1"])],
            id="what a pool may not make another one makes",
        ),
        pytest.param(
            [pool("a")],
            [claim("one", count=1), claim("seven", count=7)],
            [*claimed(2, "small", "one"), *claimed(2, "big", "seven")],
            [("a", 8, ["small-0", "big-0"]), ("a", 8, ["small-1", "big-1"])],
            id="hardest first",
        ),
        pytest.param(
            [pool("b", model="A100"), pool("a")],
            [claim("a100", count=1, model=["A100"]), claim("h100", count=1, model=["H100"])],
            [*claimed(1, "p", "h100"), *claimed(1, "q", "a100")],
            [("b", 1, ["q-0"]), ("a", 1, ["p-0"])],
            id="in the order of pools",
        ),
        pytest.param(
            [pool("a", rdma=2)],
            [claim("nic", count=1, type="rdma")],
            claimed(2, "p", "nic"),
            [("a", 0, ["p-0", "p-1"])],
            id="no GPUs for RDMA alone",
        ),
        pytest.param(
            [pool("a", labels={"zone": "x"}), pool("b", labels={"zone": "y"})],
            [claim("one", count=1)],
            claimed(1, "p", "one", selector={"zone": "y"}),
            [("b", 1, ["p-0"])],
            id="a nodeSelector",
        ),
        pytest.param(
            [pool("a"), pool("b")],
            [claim("one", count=1)],
            claimed(1, "p", "one", selector={"karpenter.sh/nodepool": "b"}),
            [("b", 1, ["p-0"])],
            id="nodes have the label of their pool",
        ),
        pytest.param(
            [pool("a", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])],
            [claim("one", count=1)],
            claimed(1, "p", "one"),
            [],
            id="a taint that is not tolerated",
        ),
        pytest.param([pool("a")], [], [], [], id="nobody waits"),
    ],
)
def test_pools(
    pools: list[Manifest], claims: list[Manifest], pods: list[Manifest], want_made: list[tuple[str, int, list[str]]]
) -> None:
    """SCALE-5 The letter of the rules, one by one."""
    assert made(run(pools=pools, claims=claims, pods=pods)) == want_made


def test_nodes_that_are_there_come_first() -> None:
    """A spread pod stays on a node there while it has room, and opens no node beside one that was opened."""
    asked = claim("one", count=1, policy="spread")
    result = run(nodes=[node("n1", 2)], pools=[pool("a")], claims=[asked], pods=claimed(5, "p", "one"))
    assert made(result) == [("a", 3, ["p-2", "p-3", "p-4"])]
    assert {one.pod: one.scaling for one in result.decisions if one.node} == dict.fromkeys(
        ["default/p-0", "default/p-1"]
    )


@pytest.mark.parametrize(
    ("pools", "pod_", "want_why"),
    [
        pytest.param([], {}, "there are no nodes; there are no pools", id="no pools"),
        pytest.param(
            [pool("a", model="A100")],
            {},
            "there are no nodes; no pool can hold it: pool a: no gpu of the models asked",
            id="a model that no pool has",
        ),
        pytest.param(
            [pool("a", 2), pool("b", 4), pool("c", model="A100")],
            {},
            "there are no nodes; no pool can hold it: 2 of 3 pools: fewer than 8 gpu devices of the models asked; "
            "1: no gpu of the models asked",
            id="too small, each for its reason",
        ),
        pytest.param(
            [pool("a", max=0)], {}, "there are no nodes; pool a may make no more nodes", id="nothing may be made"
        ),
        pytest.param(
            [pool("a")],
            {"selector": {"zone": "x"}},
            "there are no nodes; no pool can hold it: pool a: node has not the labels of the pod's nodeSelector",
            id="a label that no pool has",
        ),
    ],
)
def test_a_pod_that_no_pool_can_hold(pools: list[Manifest], pod_: dict[str, Any], want_why: str) -> None:
    asked = claim("c", count=8, model=["H100"])
    result = run(pools=pools, claims=[asked], pods=[pod("p", claim="c", **pod_)])
    assert (made(result), served(result), why(result)) == ([], {"p": None}, {"p": want_why})


def test_pods_that_are_malformed_or_placed_have_no_pool() -> None:
    result = run(nodes=[node("n1")], pools=[pool("a")], pods=[pod("p", claim="missing"), pod("q")])
    assert [one.scaling for one in result.decisions] == [None, None]
    assert made(result) == []


def test_without_pools_nothing_is_said() -> None:
    result = run(nodes=[node("n1")], pods=[pod("p")])
    assert not isinstance(result.scaling, tuple)


def test_a_gang_goes_whole_or_not_at_all() -> None:
    """SCALE-5 Members use what is free on nodes there; each has the pool that the gang waits for."""
    asked = [claim("four", count=4), claim("one", count=1)]
    gangs = [gang("ring", 3)]
    ring = claimed(3, "r", "four", gang="ring")
    result = run(nodes=[node("n1", 4)], pools=[pool("a")], claims=asked, gangs=gangs, pods=ring)
    assert made(result) == [("a", 8, ["r-1", "r-2"])]
    assert served(result) == dict.fromkeys(["r-0", "r-1", "r-2"], "a")
    result = run(pools=[pool("a", max=1)], claims=asked, gangs=gangs, pods=[*ring, *claimed(1, "p", "one")])
    assert made(result) == [("a", 1, ["p-0"])]
    assert served(result) == {"r-0": None, "r-1": None, "r-2": None, "p-0": "a"}
    assert why(result)["r-0"].endswith("pool a may make no more nodes")
    incomplete = run(pools=[pool("a")], claims=asked, gangs=gangs, pods=ring[:2])
    assert (made(incomplete), why(incomplete)["r-0"]) == ([], "gang ring: 2 of 3 pods are there")


def test_pods_above_the_least_follow_their_gang() -> None:
    asked, gangs = [claim("four", count=4)], [gang("ring", 2)]
    ring = claimed(3, "r", "four", gang="ring")
    result = run(pools=[pool("a")], claims=asked, gangs=gangs, pods=ring)
    assert [one[2] for one in made(result)] == [["r-0", "r-1"], ["r-2"]]
    result = run(pools=[pool("a", 4, max=1)], claims=asked, gangs=gangs, pods=ring)
    assert (made(result), set(served(result).values())) == ([], {None})


@pytest.mark.parametrize(
    ("topology", "pools", "want_made"),
    [
        pytest.param("required", [pool("a"), pool("b", labels={"rack": "x"})], ["b", "b"], id="a pool that fixes it"),
        pytest.param("required", [pool("a")], [], id="no pool fixes it"),
        pytest.param(
            "required",
            [pool("a", labels={"rack": "x"}, max=1), pool("b", labels={"rack": "y"})],
            ["b", "b"],
            id="one value for all",
        ),
        pytest.param("preferred", [pool("a")], ["a", "a"], id="preferred: any pool will do"),
    ],
)
def test_the_topology_of_a_gang(topology: str, pools: list[Manifest], want_made: list[str]) -> None:
    gangs = [gang("ring", 2, topology={topology: "rack"})]
    asked = [claim("eight", count=8)]
    result = run(pools=pools, claims=asked, gangs=gangs, pods=claimed(2, "r", "eight", gang="ring"))
    assert [one[0] for one in made(result)] == want_made
    if not want_made:
        assert why(result)["r-0"].endswith("no pool fixes the label rack")


def test_a_node_there_with_the_gangs_label_is_used() -> None:
    gangs, asked = [gang("ring", 2, topology={"required": "rack"})], [claim("eight", count=8)]
    result = run(
        nodes=[node("n1", rack="x"), node("n2", rack="z")],
        pools=[pool("a", labels={"rack": "x"})],
        claims=asked,
        gangs=gangs,
        pods=claimed(2, "r", "eight", gang="ring"),
    )
    assert made(result) == [("a", 8, ["r-1"])]


def test_pods_by_nvidia_gpu_that_karpenter_sees_by_itself() -> None:
    """A trigger is made where requests say that a node has room, which shares hold in truth."""
    result = run(pools=[pool("a")], pods=[pod("p", 2)])
    assert (made(result), served(result)) == ([], {"p": None})
    assert why(result)["p"].endswith("Karpenter makes a node for it without a trigger pod")
    shares = [pod(f"s-{minor}", memory="80Gi", on=f"n1:{minor}") for minor in range(8)]
    result = run(nodes=[node("n1")], pools=[pool("a")], pods=[*shares, pod("p", 2)])
    assert made(result) == [("a", 2, ["p"])]
    whole = pod("w", 8, on="n1:0,1,2,3,4,5,6,7")
    assert made(run(nodes=[node("n1")], pools=[pool("a")], pods=[whole, pod("p", 2)])) == []
    gated = run(pools=[pool("a")], gangs=[gang("ring", 2)], pods=pods(2, "r", 2, gang="ring"))
    assert made(gated) == [("a", 4, ["r-0", "r-1"])]


def test_quotas_come_before_nodes() -> None:
    """No node is made for what the queue's limit would refuse there."""
    queues = [queue("q", quota(8, 16), namespaces=["default"])]
    result = run(
        nodes=[node("n1")],
        pools=[pool("a")],
        queues=queues,
        pods=[pod("held", 8, on="n1:0,1,2,3,4,5,6,7"), *pods(3, "p", 8)],
    )
    assert made(result) == [("a", 8, ["p-0"])]
    assert served(result) == {"p-0": "a", "p-1": None, "p-2": None}
    assert why(result)["p-1"].endswith("queue q holds 16 of its limit of 16 GPUs")


@pytest.mark.parametrize(
    ("change", "want_field"),
    [
        pytest.param({"size": 3}, "pools[0].size", id="an unknown key of a pool"),
        pytest.param({"node": {"devices": [], "name": "n"}}, "pools[0].node.name", id="a node with a name"),
        pytest.param({"node": {"devices": [], "size": 1}}, "pools[0].node.size", id="an unknown key of the node"),
        pytest.param(
            {"node": {"devices": [{"minor": 0, "model": "H100", "memory": "1Gi", "size": 1}]}},
            "pools[0].node.devices[0].size",
            id="an unknown key of a device",
        ),
        pytest.param({"node": None}, "pools[0].node", id="no node"),
        pytest.param({"name": ""}, "pools[0].name", id="no name"),
        pytest.param({"max": -1}, "pools[0].max", id="a negative number of nodes"),
        pytest.param({"weight": "x"}, "pools[0].weight", id="a weight that is no number"),
        pytest.param({"taints": [{"key": "a"}]}, "pools[0].taints[0].effect", id="a taint without effect"),
    ],
)
def test_malformed_pools(change: Manifest, want_field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_scenario({"pools": [{**pool("a"), **change}]})
    assert caught.value.field == want_field


def test_two_pools_of_one_name() -> None:
    with pytest.raises(BadInput, match="stands there twice"):
        parse_scenario({"pools": [pool("a"), pool("a")]})


def test_the_entry_as_json() -> None:
    assert ScalingResult.__struct_encode_fields__ == ("pool", "gpus", "pods")
