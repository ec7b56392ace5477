"""Which node and which devices are chosen, rule by rule, what is taken of them, and how nodes rank."""

import pytest

from allocations.engine.plan import feasible, plan
from claims.dialects.request import DeviceAsk, Policy, SharePolicy
from tests.builders import (
    GI,
    HALF,
    MI,
    apply,
    device,
    fleet,
    full_mesh,
    halves,
    minors,
    nic,
    node,
    pairs,
    request,
    share,
    whole,
)

CONTIGUOUS, BINPACK, SPREAD = Policy.CONTIGUOUS, Policy.BINPACK, Policy.SPREAD


@pytest.mark.parametrize(
    ("nodes", "asked", "want_node", "want_minors"),
    [
        pytest.param(
            [node("a", gpus=4), node("b", gpus=4, taken=[0])], whole(), "b", [1], id="none takes the fuller node"
        ),
        pytest.param(
            [node("a", gpus=4), node("b", gpus=4, taken=[0])],
            whole(policy=BINPACK),
            "b",
            [1],
            id="binpack takes the fuller node",
        ),
        pytest.param(
            [node("a", gpus=4, taken=[0]), node("b", gpus=4)],
            whole(policy=SPREAD),
            "b",
            [0],
            id="spread takes the emptier node",
        ),
        pytest.param([node("b", gpus=2), node("a", gpus=2)], whole(), "a", [0], id="the name decides last"),
        pytest.param(
            [node("a", gpus=4, used={0: (90, 0)}), node("b", gpus=4, used={0: (10, 10 * GI)})],
            whole(),
            "b",
            [1],
            id="fuller by memory before core",
        ),
        pytest.param(
            [node("a", gpus=4, used={0: (10, 0)}), node("b", gpus=4, used={0: (20, 0)})],
            whole(),
            "b",
            [1],
            id="then by core",
        ),
        pytest.param(
            [node("a", gpus=8, taken=[0, 1, 2]), node("b", gpus=4, taken=[0, 1])],
            whole(),
            "b",
            [2],
            id="fullness is a fraction, not a count",
        ),
        pytest.param(
            [node("a", gpus=4, links=pairs(4, 2)), node("b", gpus=4, links=pairs(4, 4))],
            whole(2),
            "b",
            [0, 1],
            id="equally full nodes rank by score",
        ),
        pytest.param(
            [node("a", gpus=4, taken=[0]), node("b", gpus=4, links=full_mesh(4))],
            whole(2),
            "a",
            [1, 2],
            id="without contiguous the fuller node beats the better set",
        ),
        pytest.param(
            [node("a", gpus=4, taken=[0]), node("b", gpus=4, links=full_mesh(4))],
            whole(2, policy=CONTIGUOUS),
            "b",
            [0, 1],
            id="contiguous takes the better set on the emptier node",
        ),
        pytest.param(
            [
                node("a", gpus=8, links=[*halves(8, 18)], taken=[0, 4]),
                node("b", gpus=8, links=halves(8, 1), taken=[0]),
            ],
            whole(4, policy=CONTIGUOUS),
            "b",
            [4, 5, 6, 7],
            id="contiguous: an island with few links beats a higher score over two",
        ),
        pytest.param(
            [node("a", gpus=4, links=full_mesh(4)), node("b", gpus=4, links=full_mesh(4), taken=[0])],
            whole(2, policy=CONTIGUOUS),
            "b",
            [1, 2],
            id="contiguous: equal sets rank by fullness",
        ),
        pytest.param(
            [node("a", gpus=4, links=pairs(4), taken=[0, 2])],
            whole(2, policy=CONTIGUOUS),
            "a",
            [1, 3],
            id="contiguous is a preference",
        ),
        pytest.param(
            [node("a", gpus=4, links=pairs(4), taken=[0, 2])],
            whole(2, policy=CONTIGUOUS, policy_strict=True),
            None,
            [],
            id="policyStrict makes it a condition",
        ),
        pytest.param(
            [node("a", gpus=4, links=pairs(4), taken=[0])],
            whole(1, policy=CONTIGUOUS, policy_strict=True),
            "a",
            [1],
            id="a single GPU is always in one island",
        ),
        pytest.param(
            [node("a", gpus=4, links=pairs(4), taken=[0])], whole(), "a", [1], id="a lone GPU comes from a broken pair"
        ),
        pytest.param(
            [node("a", gpus=4, links=[(0, 2, 4), (2, 0, 1), (1, 3, 4)])],
            whole(2, policy=SPREAD),
            "a",
            [1, 3],
            id="spread still takes the best set of the node",
        ),
        pytest.param(
            [node("a", gpus=4, links=full_mesh(4), sick=[1])], whole(3), "a", [0, 2, 3], id="sick GPUs are passed over"
        ),
        pytest.param(
            [node("a", gpus=2, model="A100"), node("b", gpus=2)], whole(models=("h100",)), "b", [0], id="models asked"
        ),
        pytest.param([node("a", gpus=[5, 3, 9])], whole(2), "a", [3, 5], id="minors with gaps"),
    ],
)
def test_whole_gpus(nodes, asked, want_node, want_minors):
    """CLAIM-4 CLAIM-5 which node and which GPUs."""
    decision = plan(fleet(*nodes), asked)
    assert (decision.node, minors(decision)) == (want_node, want_minors)


@pytest.mark.parametrize(
    ("nodes", "asked", "want_node", "want_minors"),
    [
        pytest.param(
            [node("a", gpus=3, used={1: HALF})], share(core=50, ratio=50), "a", [1], id="two half shares fill one card"
        ),
        pytest.param(
            [node("a", gpus=3, used={1: HALF, 2: (30, 60 * GI)})],
            share(core=20, memory=10 * GI),
            "a",
            [2],
            id="fullest by memory, then core",
        ),
        pytest.param(
            [node("a", gpus=3, used={1: (20, 8 * GI), 2: (30, 8 * GI)})],
            share(core=20),
            "a",
            [2],
            id="core decides between equal memory",
        ),
        pytest.param([node("a", gpus=3, used={0: HALF, 1: HALF})], share(core=20), "a", [0], id="lower minor on a tie"),
        pytest.param(
            [node("a", gpus=3, used={0: HALF})], share(core=20, policy=SPREAD), "a", [1], id="spread: the emptiest"
        ),
        pytest.param(
            [node("a", gpus=3, used={0: HALF, 1: (10, 0), 2: (5, 0)})],
            share(core=20, share=SharePolicy.GPUSPREAD),
            "a",
            [2],
            id="gpuspread: the emptiest",
        ),
        pytest.param(
            [node("a", gpus=3, used={0: HALF})],
            share(core=50, count=2),
            "a",
            [0, 1],
            id="two shares take two devices",
        ),
        pytest.param(
            [node("a", gpus=2, used={0: (60, 0)}), node("b", gpus=2)],
            share(core=50),
            "a",
            [1],
            id="the fuller node, on a device that fits",
        ),
        pytest.param(
            [node("a", gpus=4, links=pairs(4), used={0: HALF, 3: HALF, 2: (10, 0)})],
            share(core=10, count=2, policy=CONTIGUOUS),
            "a",
            [2, 3],
            id="contiguous shares keep to one island where one has enough",
        ),
        pytest.param(
            [node("a", gpus=1, taken=[0])], share(ratio=1), None, [], id="a device wholly taken has nothing to share"
        ),
        pytest.param([node("a", gpus=2, sick=[0])], share(core=10), "a", [1], id="nothing is shared on a sick device"),
    ],
)
def test_shares(nodes, asked, want_node, want_minors):
    """SHARE-2 which device a share goes to."""
    decision = plan(fleet(*nodes), asked)
    assert (decision.node, minors(decision)) == (want_node, want_minors)


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(whole(), (100, 46068 * MI, True), id="whole"),
        pytest.param(share(core=50, ratio=50), (50, 46068 * MI // 2, False), id="core and ratio"),
        pytest.param(
            share(ratio=33), (0, 46068 * MI * 33 // 100, False), id="a ratio rounds down; alone it takes core 0"
        ),
        pytest.param(share(memory=5 * GI), (0, 5 * GI, False), id="memory alone takes core 0"),
        pytest.param(share(core=30), (30, 0, False), id="core alone takes no memory"),
    ],
)
def test_amounts(asked, want):
    """DEV-1 what is taken of the device chosen."""
    (grant,) = plan(fleet(node("a", gpus=1, memory=46068 * MI)), asked).grants
    assert (grant.core_percent, grant.memory_bytes, grant.whole) == want


RDMA = request(DeviceAsk("rdma", 1))


@pytest.mark.parametrize(
    ("nics", "asked", "want"),
    [
        pytest.param([nic("a", 1), nic("a", 0)], RDMA, [("rdma", 0, 100)], id="whole, lower minor"),
        pytest.param([nic("a", 0, used=100), nic("a", 1)], RDMA, [("rdma", 1, 100)], id="whole needs an unused one"),
        pytest.param(
            [nic("a", 0), nic("a", 1, used=20)],
            request(DeviceAsk("rdma", 1, core_percent=50, memory_ratio=50)),
            [("rdma", 1, 50)],
            id="a type without memory is shared by core alone",
        ),
        pytest.param(
            [nic("a", 0, pcie="x"), nic("a", 1, pcie="s0")],
            request(DeviceAsk("gpu", 1), DeviceAsk("rdma", 1)),
            [("gpu", 0, 100), ("rdma", 1, 100)],
            id="the NIC under the GPU's switch",
        ),
        pytest.param(
            [nic("a", 0, pcie="x", numa=1), nic("a", 1, pcie="y", numa=0)],
            request(DeviceAsk("gpu", 1), DeviceAsk("rdma", 1)),
            [("gpu", 0, 100), ("rdma", 1, 100)],
            id="the NIC at the GPU's NUMA node",
        ),
        pytest.param(
            [nic("a", 0, kind="fpga"), nic("a", 0)],
            request(DeviceAsk("gpu", 1, core_percent=10), DeviceAsk("fpga", 1), DeviceAsk("rdma", 1)),
            [("gpu", 0, 10), ("fpga", 0, 100), ("rdma", 0, 100)],
            id="three types at once",
        ),
        pytest.param(
            [nic("a", 0, kind="dpu")],
            request(DeviceAsk("dpu", 1)),
            [("dpu", 0, 100)],
            id="a type never heard of needs no code",
        ),
    ],
)
def test_other_types(nics, asked, want):
    """DEV-4 every device type takes the same path."""
    decision = plan(fleet(node("a", gpus=2, pcie=lambda minor: f"s{minor}", others=nics)), asked)
    assert [(grant.type, grant.minor, grant.core_percent) for grant in decision.grants] == want
    assert all(grant.memory_bytes is None for grant in decision.grants if grant.type != "gpu")


def test_sixteen_halves_on_eight_gpus_are_two_per_card():
    """KAI #2153: over-packing 3–4 per card and livelock."""
    picture = fleet(node("a", gpus=8))
    placed = []
    for _ in range(16):
        decision = plan(picture, share(core=50, ratio=50))
        placed += minors(decision)
        picture = apply(picture, decision)
    assert sorted(placed) == sorted([*range(8)] * 2)
    assert plan(picture, share(core=50, ratio=50)).node is None


def test_twenty_four_pods_of_2000_mib_on_one_card():
    """KAI #416: 23 placed, one pending with a reason."""
    picture = fleet(node("a", gpus=1, memory=46068 * MI))
    decisions = []
    for _ in range(24):
        decisions.append(plan(picture, share(memory=2000 * MI)))
        picture = apply(picture, decisions[-1])
    assert [one.node for one in decisions] == ["a"] * 23 + [None]
    assert decisions[-1].summary == "1 of 1 nodes: no device with 2000 MiB memory free"


class TestScores:
    def test_scores_rank_as_the_engine_chooses(self):
        """CLAIM-4 no constant score: repeated choice without the winner walks down the scores."""
        picture = fleet(
            node("a", gpus=4),
            node("b", gpus=4, taken=[0]),
            node("c", gpus=4, taken=[0, 1, 2, 3]),
            node("d", gpus=4, taken=[0], links=full_mesh(4)),
            node("e", gpus=4, links=pairs(4)),
        )
        for policy in Policy:
            decision = plan(picture, whole(2, policy=policy))
            ranked = sorted(feasible(decision, picture), key=lambda one: -one[1])
            left = [row for row, name in enumerate(picture.node_names) if name != "c"]
            walked = []
            while left:
                name = plan(picture, whole(2, policy=policy), candidates=left).node
                assert name is not None
                walked.append(name)
                left.remove(picture.node_index[name])
            assert [name for name, _ in ranked] == walked
            assert "c" not in dict(ranked)
            assert ranked[0][1] == 1.0

    def test_summary_of_a_success(self):
        picture = fleet(node("n1", gpus=4, links=pairs(4, 18), pcie=lambda minor: "s", others=[nic("n1", 0)]))
        asked = request(DeviceAsk("gpu", 2), DeviceAsk("rdma", 1))
        assert plan(picture, asked).summary == "n1: gpu 0,1 (one island, score 1850); rdma 0"
        assert plan(picture, share(core=50, memory=16 * GI)).summary == "n1: gpu 0 (50 core, 16 GiB memory)"


def test_a_node_of_more_than_16_gpus_is_served():
    links = [(base + a, base + b, 18) for base in (0, 8, 16) for a, b, _ in full_mesh(8)]
    picture = fleet(node("a", gpus=24, links=links, taken=[0, 9]), node("b", gpus=4))
    for policy in Policy:
        decision = plan(picture, whole(8, policy=policy))
        assert (decision.node, minors(decision)) == ("a", list(range(16, 24)))
    assert plan(picture, whole(22)).node == "a"
    assert plan(picture, whole(23)).node is None


def test_mixed_memory_sizes_on_one_node_use_each_devices_own():
    devices = [device("a", 0, memory=40 * GI, used=(0, 30 * GI)), device("a", 1, memory=80 * GI, used=(0, 30 * GI))]
    picture = fleet(node("a", others=devices))
    (grant,) = plan(picture, share(core=1, ratio=50)).grants
    assert (grant.minor, grant.memory_bytes) == (1, 40 * GI)
