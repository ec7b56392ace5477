"""GPUs and NICs under the same PCIe switches: which devices, which node, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.build import DeviceRow, NodeRow
from allocations.engine.decision import Decision
from allocations.engine.plan import feasible, plan
from claims.dialects.request import DeviceAsk, DeviceRequest, Joint, Limits
from tests.builders import GI, HALF, device_id, fleet, full_mesh, nic, node, pairs, request, told

BY_TWO, BY_FOUR = (lambda minor: f"s{minor // 2}"), (lambda minor: f"s{minor // 4}")


def joint(gpus: int, nics: int, *, required: bool = True, part: int | None = None, **options: object) -> DeviceRequest:
    """`part`: core percent of shares in place of whole devices."""
    gpu = DeviceAsk("gpu", gpus) if part is None else DeviceAsk("gpu", gpus, core_percent=part, memory_ratio=part)
    rdma = DeviceAsk("rdma", nics) if part is None else DeviceAsk("rdma", nics, core_percent=part)
    return request(gpu, rdma, joint=Joint(types=("gpu", "rdma"), required=required), **options)


def box(
    name: str,
    *,
    nics: Sequence[str] = ("s0", "s1", "s2", "s3"),
    used: Sequence[int] = (),
    parts: Mapping[int, int] | None = None,
    gpus: Mapping[int, tuple[int, int]] | None = None,
    **more: object,
) -> NodeRow:
    """Eight GPUs, two under each of four switches, and a NIC under each switch named.

    `used`: taken NICs, `parts`: core percent used of NICs, `gpus`: what is used of GPUs.
    """
    core = {**dict.fromkeys(used, 100), **(parts or {})}
    rows = [nic(name, minor, pcie=pcie, used=core.get(minor, 0)) for minor, pcie in enumerate(nics)]
    options = {"pcie": BY_TWO, "links": pairs(8), "others": rows, "used": gpus, **more}
    return node(name, gpus=8, **options)  # type: ignore[arg-type]  # a table


def chosen(decision: Decision) -> dict[str, list[int]]:
    """Type → minors."""
    found: dict[str, list[int]] = {}
    for grant in decision.grants:
        found.setdefault(grant.type, []).append(grant.minor)
    return found


@pytest.mark.parametrize(
    ("there", "asked", "want"),
    [
        pytest.param(box("a"), joint(1, 1), {"gpu": [0], "rdma": [0]}, id="one of each"),
        pytest.param(
            box("a", nics=("s2",)), joint(1, 1), {"gpu": [4], "rdma": [0]}, id="the GPU goes where the NIC is"
        ),
        pytest.param(box("a", taken=[0]), joint(2, 1), {"gpu": [2, 3], "rdma": [1]}, id="two under one switch"),
        pytest.param(box("a"), joint(4, 2), {"gpu": [0, 1, 2, 3], "rdma": [0, 1]}, id="two switches, a NIC each"),
        pytest.param(
            box("a", pcie=BY_FOUR, nics=("s0", "s0", "s1", "s1"), taken=[0]),
            joint(4, 2),
            {"gpu": [4, 5, 6, 7], "rdma": [2, 3]},
            id="as few switches as there can be",
        ),
        pytest.param(
            box("a", used=[0, 1]), joint(3, 2), {"gpu": [4, 5, 6], "rdma": [2, 3]}, id="only where NICs are free"
        ),
        pytest.param(box("a", used=[0]), joint(1, 1, part=50), {"gpu": [2], "rdma": [1]}, id="shares"),
        pytest.param(
            box("a", nics=("", "s3")),
            joint(1, 1),
            {"gpu": [6], "rdma": [1]},
            id="a NIC whose switch is unknown does not count",
        ),
        pytest.param(
            box("a"), joint(4, 1, required=False), {"gpu": [0, 1, 2, 3], "rdma": [0]}, id="preferred, not possible"
        ),
        pytest.param(box("a", nics=("s3",)), joint(2, 1, required=False), {"gpu": [6, 7], "rdma": [0]}, id="preferred"),
    ],
)
def test_which_devices(there: NodeRow, asked: DeviceRequest, want: dict[str, list[int]]) -> None:
    """DEV-10 under the same switches, and under as few as possible."""
    decision = plan(fleet(there), asked)
    assert decision.node == "a"
    assert chosen(decision) == want


@pytest.mark.parametrize(
    ("there", "asked", "reason", "resolvable"),
    [
        pytest.param(
            box("a"),
            joint(3, 1),
            "no gpu and rdma devices under the same PCIe switches",
            False,
            id="never: three of two",
        ),
        pytest.param(
            box("a", pcie=lambda minor: ""),
            joint(1, 1),
            "no gpu and rdma devices under the same PCIe switches",
            False,
            id="unknown",
        ),
        pytest.param(
            box("a", nics=("s0", "s1"), taken=[0, 1], used=[1]),
            joint(1, 1),
            "no gpu and rdma devices free under the same PCIe switches",
            True,
            id="not now: GPUs here, NICs there",
        ),
        pytest.param(box("a", nics=()), joint(1, 1), "no rdma devices", False, id="no NIC at all"),
        pytest.param(box("a", used=[0, 1, 2, 3]), joint(1, 1), "no whole rdma device free", True, id="no NIC free"),
    ],
)
def test_why_not(there: NodeRow, asked: DeviceRequest, reason: str, resolvable: bool) -> None:
    """DEV-10 required and not to be had, with the reason; resolvable where others' end would help."""
    decision = plan(fleet(there), asked)
    assert decision.node is None
    assert [(why.text, why.resolvable) for _, why in told(decision).refused()] == [(reason, resolvable)]


def test_the_node_where_it_is_possible() -> None:
    """DEV-10 preferred: a node with a NIC under the GPU's switch comes before a fuller one without, and that before
    none.
    """
    there = box("b"), box("a", nics=("s0",), taken=[0, 1])
    asked = joint(1, 1, required=False)
    assert plan(fleet(*there), asked).node == "b"
    assert plan(fleet(there[1]), asked).node == "a"
    assert chosen(plan(fleet(there[1]), asked)) == {"gpu": [2], "rdma": [0]}


def test_fewer_switches_come_first() -> None:
    """DEV-10 of two nodes that can serve, the one with fewer switches, although the other is fuller."""
    narrow = box("narrow", pcie=BY_FOUR, nics=("s0", "s0", "s1", "s1"))
    wide = box("wide", taken=[7])
    assert plan(fleet(narrow, wide), joint(4, 2)).node == "narrow"


def test_a_fleet_where_it_is_possible_here_and_there() -> None:
    """DEV-10 every node by itself, whatever the others have: none, one switch, two, and fewer devices than asked."""
    nodes = [
        box("none", nics=()),
        box("one", pcie=BY_FOUR, nics=("s0", "s0")),
        box("two"),
        box("short", nics=("s0",)),
    ]
    picture = fleet(*nodes)
    decision = plan(picture, joint(4, 2))
    assert dict(feasible(decision, picture)).keys() == {"one", "two"}
    assert decision.node == "one"


def test_preferred_with_a_nic_under_one_of_the_switches() -> None:
    """DEV-10 three GPUs need two switches, and there is a NIC under one: that is better than a NIC under none, on a
    node and between nodes.
    """
    near, far = box("near", nics=("s3",)), box("far", nics=("",), taken=[7])
    asked = joint(3, 1, required=False)
    assert chosen(plan(fleet(near), asked)) == {"gpu": [4, 5, 6], "rdma": [0]}
    assert plan(fleet(near, far), asked).node == "near"
    assert plan(fleet(far), asked).node == "far"


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("there", "gpus", "nics", "want"),
    [
        pytest.param(
            box("a", gpus={5: HALF}), 1, 1, {"gpu": [5], "rdma": [2]}, id="the fullest GPU, and the NIC beside it"
        ),
        pytest.param(
            box("a", gpus={5: HALF, 2: (10, 8 * GI)}, used=[2]),
            1,
            1,
            {"gpu": [2], "rdma": [1]},
            id="the fullest of those that have a NIC beside them",
        ),
        pytest.param(
            box("a", nics=("s2", "s2", "s0"), parts={1: 25}, gpus={5: HALF}),
            1,
            1,
            {"gpu": [5], "rdma": [1]},
            id="the fullest NIC there",
        ),
        pytest.param(
            box("a", parts={0: 40}, gpus={5: HALF}), 1, 1, {"gpu": [5], "rdma": [2]}, id="a NIC elsewhere is fuller"
        ),
        pytest.param(
            box("a", gpus={5: HALF, 7: HALF}),
            2,
            1,
            {"gpu": [4, 5], "rdma": [2]},
            id="one switch before two fuller GPUs",
        ),
        pytest.param(
            box("a", gpus={5: HALF, 7: HALF, 6: HALF}),
            2,
            1,
            {"gpu": [6, 7], "rdma": [3]},
            id="of those under one switch the fuller two",
        ),
    ],
)
def test_a_share_goes_by_the_same_packing(
    there: NodeRow, gpus: int, nics: int, want: dict[str, list[int]], required: bool
) -> None:
    """DEV-10 a share with a NIC goes to the fullest GPU that has a fitting one beside it, not to a free one."""
    assert chosen(plan(fleet(there), joint(gpus, nics, required=required, part=50))) == want


@pytest.mark.parametrize(
    ("fpgas", "want"),
    [
        pytest.param(("s2",), {"gpu": [4], "fpga": [0], "rdma": [1]}, id="all three under one switch"),
        pytest.param(("s1",), {"gpu": [0], "fpga": [0], "rdma": [0]}, id="two of three, the first such GPU"),
        pytest.param((), None, id="none to be had"),
    ],
)
def test_three_types(fpgas: Sequence[str], want: dict[str, list[int]] | None) -> None:
    """DEV-10 preferred, of three types: all under one switch, else as many as can be."""
    there = box("a", nics=("s0", "s2"))
    others = [nic("a", minor, kind="fpga", pcie=pcie) for minor, pcie in enumerate(fpgas)]
    there = msgspec.structs.replace(there, devices=(*there.devices, *others))
    asks = DeviceAsk("gpu", 1), DeviceAsk("fpga", 1), DeviceAsk("rdma", 1)
    decision = plan(fleet(there), request(*asks, joint=Joint(types=("gpu", "rdma", "fpga"))))
    assert chosen(decision) == (want or {})
    strict = plan(fleet(there), request(*asks, joint=Joint(types=("gpu", "rdma", "fpga"), required=True)))
    assert (strict.node is not None) == (fpgas == ("s2",))


def test_shares_over_two_switches() -> None:
    """DEV-10 preferred: the NIC comes from a switch of a chosen GPU, although another NIC is fuller."""
    asked = request(
        DeviceAsk("gpu", 3, core_percent=25, memory_ratio=25),
        DeviceAsk("rdma", 1, core_percent=25),
        joint=Joint(types=("gpu", "rdma")),
    )
    there = box("a", nics=("s3", "s0"), parts={0: 40}, gpus={0: HALF, 1: HALF, 2: HALF})
    assert chosen(plan(fleet(there), asked)) == {"gpu": [0, 1, 2], "rdma": [1]}


def test_a_lone_gpu_comes_from_a_broken_pair() -> None:
    """DEV-10 one GPU with a NIC is chosen as every lone GPU: what is left over for the next counts."""
    assert chosen(plan(fleet(box("a", taken=[3])), joint(1, 1))) == {"gpu": [2], "rdma": [1]}


@pytest.mark.parametrize("required", [True, False])
def test_all_gpus_at_one_numa_node(required: bool) -> None:
    """DEV-10 a pod that binds its GPUs to one NUMA node has them there with its NICs too."""
    there = box("a", nics=("s1", "s2", "s3"), taken=[3, 4], numa=lambda minor: minor // 4)
    bound = DeviceAsk("gpu", 2, limits=Limits(one_numa=True))
    asked = request(bound, DeviceAsk("rdma", 2), joint=Joint(types=("gpu", "rdma"), required=required))
    assert chosen(plan(fleet(there), asked)) == {"gpu": [5, 6], "rdma": [1, 2]}
    apart = box("a", nics=("s1", "s2"), taken=[3, 4], numa=lambda minor: minor // 4)
    assert plan(fleet(apart), asked).node == (None if required else "a")


@st.composite
def boxes(draw: st.DrawFn) -> NodeRow:
    """A node of up to eight GPUs and five NICs under up to four switches, some of them in part used."""
    switches = st.sampled_from(["", "s0", "s1", "s2", "s3"])
    gpus = draw(st.lists(switches, min_size=1, max_size=8))
    nics = draw(st.lists(switches, min_size=1, max_size=5))
    rows = [
        nic("a", minor, pcie=pcie, used=draw(st.sampled_from([0, 0, 30, 60, 100]))) for minor, pcie in enumerate(nics)
    ]
    share = st.sampled_from([(0, 0), (0, 0), (25, 20 * GI), (50, 40 * GI), (0, 60 * GI), (100, 80 * GI)])
    used = {minor: amount for minor in range(len(gpus)) if (amount := draw(share)) != (0, 0)}
    links = draw(st.sampled_from([(), pairs(len(gpus)), full_mesh(len(gpus))]))
    return node("a", gpus=len(gpus), pcie=gpus.__getitem__, links=links, used=used, others=rows, memory=80 * GI)


def under(devices: Iterable[DeviceRow]) -> set[str]:
    """The switches; an empty one stands for those that are not known."""
    return {one.pcie for one in devices}


def fits(one: DeviceRow, core: int | None) -> bool:
    """Whether a device has room for a share of so much core, and of memory where it has any; None: for all of it."""
    if core is None:
        return not one.core_used and not one.memory_used
    return one.core_used + core <= 100 and one.memory_used + core * GI * 80 // 100 <= (one.memory_bytes or 80 * GI)


def fullness(one: DeviceRow) -> tuple[float, int, int]:
    return -one.memory_used / (one.memory_bytes or 1), -one.core_used, one.minor


Best = tuple[tuple[int, ...], list[DeviceRow], list[DeviceRow]]


def best_by_trying(there: NodeRow, gpus: int, nics: int, *, core: int | None, required: bool) -> Best | None:
    """Every choice there is: (what it is worth, GPUs, NICs) of the best, None where nothing serves."""
    topology = fleet(there).node_topology[0]
    free = {kind: [one for one in there.devices if one.type == kind and fits(one, core)] for kind in ("gpu", "rdma")}
    order = {kind: sorted(listed, key=fullness) for kind, listed in free.items()}
    whole_free = [one.minor for one in there.devices if one.type == "gpu" and fits(one, None)]
    best: tuple[tuple[object, ...], list[DeviceRow], list[DeviceRow]] | None = None
    if len(free["rdma"]) < nics:
        return None
    for some in combinations(free["gpu"] if core is None else order["gpu"], gpus):
        switches = under(some)
        known = switches - {""}
        exact = [others for others in combinations(order["rdma"], nics) if under(others) == switches == known]
        if required and not exact:
            continue
        beside = [one for one in order["rdma"] if one.pcie in known]
        others = list(exact[0]) if exact else (beside + [one for one in order["rdma"] if one not in beside])[:nics]
        near = (1, -len(switches)) if exact else (0, min(nics, len(beside)))
        minors = [one.minor for one in some]
        if core is None:
            left = topology.score([minor for minor in whole_free if minor not in minors])
            worth: tuple[object, ...] = (*near, topology.score(minors), left, [-minor for minor in minors])
        else:
            fuller = [tuple(-part for part in fullness(one)[:2]) for one in some]
            worth = (*near, fuller, [-order["gpu"].index(one) for one in some])
        if best is None or worth > best[0]:
            best = worth, list(some), others
    return None if best is None else ((), best[1], best[2])


@settings(max_examples=200)
@given(boxes(), st.integers(1, 4), st.integers(1, 3), st.sampled_from([None, 25, 50]), st.booleans())
def test_nothing_better_exists(there: NodeRow, gpus: int, nics: int, core: int | None, required: bool) -> None:
    """DEV-10 against every choice: required or preferred, whole devices or shares, found exactly where one exists, and
    the best of them.
    """
    decision = plan(fleet(there), joint(gpus, nics, required=required, part=core))
    best = best_by_trying(there, gpus, nics, core=core, required=required)
    assert (decision.node is None) == (best is None)
    if best is None:
        return
    found = chosen(decision)
    assert found["gpu"] == sorted(one.minor for one in best[1])
    by_minor = {one.minor: one for one in there.devices if one.type == "rdma"}
    given = [by_minor[minor] for minor in found["rdma"]]
    beside = under(best[1]) - {""}
    assert len(given) == nics
    assert sum(one.pcie in beside for one in given) == sum(one.pcie in beside for one in best[2])
    if core is not None:
        assert sorted(found["rdma"]) == sorted(one.minor for one in best[2])


@given(st.lists(boxes(), min_size=2, max_size=4), st.integers(1, 3), st.integers(1, 2), st.sampled_from([None, 25]))
def test_no_node_is_nearer(there: list[NodeRow], gpus: int, nics: int, core: int | None) -> None:
    """DEV-10 preferred: under the fewest switches where that is possible anywhere, else on a node where most NICs are
    beside the GPUs.
    """
    nodes = [renamed(one, f"n{number}") for number, one in enumerate(there)]
    decision = plan(fleet(*nodes), joint(gpus, nics, required=False, part=core))
    worth = {one.name: worth_of(one, gpus, nics, core) for one in nodes}
    able = {name: value for name, value in worth.items() if value is not None}
    assert (decision.node is None) == (not able)
    if decision.node is not None:
        assert worth[decision.node] == max(able.values())


def worth_of(there: NodeRow, gpus: int, nics: int, core: int | None) -> tuple[int, int] | None:
    """(whether under the same switches, fewer switches or more NICs beside) of the best choice on a node."""
    best = best_by_trying(there, gpus, nics, core=core, required=False)
    if best is None:
        return None
    switches = under(best[1])
    if "" not in switches and under(best[2]) == switches:
        return 1, -len(switches)
    return 0, sum(one.pcie in switches - {""} for one in best[2])


def renamed(there: NodeRow, name: str) -> NodeRow:
    """The same node under another name, with devices of its own."""
    devices = [
        msgspec.structs.replace(one, device_id=device_id(name, one.type, one.minor), uuid=f"{name}-{one.uuid}")
        for one in there.devices
    ]
    return msgspec.structs.replace(there, name=name, devices=tuple(devices))


@pytest.mark.parametrize(
    ("nics", "taken"),
    [(3, ()), (2, (0, 17)), (1, tuple(range(8)))],
    ids=["three switches, all free", "two switches, two GPUs taken", "one switch, eight GPUs taken"],
)
def test_a_node_of_many_gpus(nics: int, taken: tuple[int, ...]) -> None:
    """DEV-10 beyond sixteen GPUs: what is required holds, and the set is no worse wired than one switch after the
    other.
    """
    rows = [nic("a", minor, pcie=f"s{minor}") for minor in range(6)]
    there = node("a", gpus=24, pcie=lambda minor: f"s{minor // 4}", links=pairs(24), taken=taken, others=rows)
    found = chosen(plan(fleet(there), joint(nics * 2, nics)))
    switches = {minor // 4 for minor in found["gpu"]}
    assert switches == set(found["rdma"])
    assert len(found["gpu"]) == nics * 2
    assert len(switches) == nics
