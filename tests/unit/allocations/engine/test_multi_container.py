"""Several asks for one device type, and limits on which devices: compared with every way of dividing a node."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine import plan as planning
from allocations.engine.build import build_snapshot
from allocations.engine.decision import Decision
from allocations.engine.explain import explain_devices
from allocations.engine.multi_container import TRIES, TRIES_A_NODE
from allocations.engine.plan import plan
from allocations.engine.reasons import TOO_MANY_WAYS
from allocations.engine.snapshot import DEVICE_PLUGIN, Grouped, Snapshot
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Limits, Policy, SharePolicy
from claims.dialects.steps import Steps
from tests.builders import GI, apply, device, fleet, full_mesh, halves, node, request, told, whole

TEN = 10 * GI
"""Memory of the small devices here."""


def part(core: int, gigabytes: int, count: int = 1, **more: Any) -> DeviceAsk:
    return DeviceAsk("gpu", count, core_percent=core, memory_bytes=gigabytes * GI, **more)


def takes(ask: DeviceAsk, total: int) -> tuple[int, int]:
    if ask.whole:
        return 100, total
    return ask.core_percent or 0, ask.memory_bytes or 0


def divides(asked: DeviceRequest, devices: Any) -> bool:
    """Whether there is any way, by trying all of them."""
    ways = [itertools.combinations(range(len(devices)), ask.count) for ask in asked.asks]
    return any(
        all(may_have(ask, places, devices) for ask, places in zip(asked.asks, choice, strict=True))
        and all(fits_at(step, asked, choice, devices) for step in range(asked.steps))
        for choice in itertools.product(*(list(way) for way in ways))
    )


def may_have(ask: DeviceAsk, places: Any, devices: Any) -> bool:
    """Whether the devices are such as the ask allows, and free where it wants them whole."""
    limits = ask.limits or Limits()
    numas = {devices[place].numa for place in places}
    if limits.one_numa and ask.count > 1 and (len(numas) > 1 or -1 in numas):
        return False
    return all(
        one.healthy
        and limits.permit(uuid=one.uuid, model=one.model, memory_total=one.memory_bytes)
        and not (ask.whole and (one.core_used or one.memory_used))
        for one in (devices[place] for place in places)
    )


def fits_at(step: int, asked: DeviceRequest, choice: Any, devices: Any) -> bool:
    """Whether what runs at this step fits at once, and nobody meets a whole device."""
    running = [
        (ask, set(places))
        for ask, places in zip(asked.asks, choice, strict=True)
        if ask.steps.first <= step <= ask.steps.last
    ]
    for place, one in enumerate(devices):
        here = [ask for ask, places in running if place in places]
        taken = [takes(ask, one.memory_bytes) for ask in here]
        core, memory = sum(core for core, _ in taken), sum(memory for _, memory in taken)
        if len(here) > 1 and any(ask.whole for ask in here):
            return False
        if here and (one.core_used + core > 100 or one.memory_used + memory > one.memory_bytes):
            return False
    return True


LIMITS = st.one_of(
    st.none(),
    st.builds(
        Limits,
        uuids=st.sampled_from([(), ("GPU-a-0", "GPU-a-2"), ("GPU-a-1",), ("GPU-x",)]),
        not_uuids=st.sampled_from([(), ("GPU-a-0",)]),
        models=st.sampled_from([(), ("h1",), ("A100", "L40")]),
        not_models=st.sampled_from([(), ("h100",)]),
        memory_least=st.sampled_from([0, 11 * GI]),
        one_numa=st.booleans(),
    ),
)
ASKS = st.one_of(
    st.builds(part, st.integers(0, 10).map(lambda tens: tens * 10), st.integers(1, 12), st.integers(1, 2)),
    st.builds(DeviceAsk, st.just("gpu"), st.integers(1, 2)),
)
STEPS = st.one_of(
    st.just(Steps(0, 0)),
    st.lists(st.integers(0, 2), min_size=2, max_size=2).map(lambda ends: Steps(min(ends), max(ends))),
)
"""Of containers alone, or any stretch of three steps: init containers, sidecars, containers."""


@st.composite
def devices(draw: Any) -> Any:
    return [
        device(
            "a",
            minor,
            model=draw(st.sampled_from(["H100", "A100-SXM"])),
            memory=draw(st.sampled_from([TEN, 12 * GI])),
            numa=draw(st.sampled_from([-1, 0, 1])),
            healthy=draw(st.sampled_from([True, True, True, False])),
            used=draw(st.sampled_from([(0, 0), (0, 0), (30, 4 * GI), (0, 9 * GI), (100, TEN)])),
        )
        for minor in range(draw(st.integers(1, 4)))
    ]


@settings(max_examples=300, deadline=None)
@given(devices(), st.lists(st.tuples(ASKS, STEPS), min_size=1, max_size=4), LIMITS, st.sampled_from(SharePolicy))
def test_a_node_serves_exactly_where_there_is_a_way(own: Any, asks: Any, limits: Any, share: SharePolicy) -> None:
    """DEV-2 containers planned one by one share devices or not, whichever serves them all; never more than a device
    has, at no step of the pod's life, and what is granted is the most that is taken at once.
    """
    asked = request(*(msgspec.structs.replace(ask, limits=limits, steps=steps) for ask, steps in asks), share=share)
    picture = build_snapshot([node("a", others=own)])
    decision = plan(picture, asked)
    able = divides(asked, own)
    assert (decision.node == "a") == able
    empty = [msgspec.structs.replace(one, core_used=0, memory_used=0) for one in own]
    if not able:
        (why,) = [reason for _, reason in told(decision).refused()]
        assert why.resolvable == divides(asked, empty), why
        return
    after = apply(picture, decision)
    assert (after.core_used <= 100).all()
    assert (after.memory_used <= after.memory_total).all()
    served = decision.served(asked)
    if not asked.several:
        assert served == asked
        return
    used: dict[int, list[int]] = {}
    for step in range(asked.steps):
        sums: dict[int, list[int]] = {}
        for ask in served.asks:
            assert len(set(ask.given)) == ask.count
            for minor in ask.given if ask.steps.first <= step <= ask.steps.last else ():
                taken = takes(ask, own[minor].memory_bytes)
                at_once = sums.setdefault(minor, [0, 0])
                at_once[0] += taken[0]
                at_once[1] += taken[1]
        for minor, (core, memory) in sums.items():
            most = used.setdefault(minor, [0, 0])
            most[:] = max(most[0], core), max(most[1], memory)
    assert used == {grant.minor: [grant.core_percent, grant.memory_bytes] for grant in decision.grants}
    held_whole = {minor for ask in served.asks if ask.whole for minor in ask.given}
    assert held_whole == {grant.minor for grant in decision.grants if grant.whole}


FIRST, THEN, BOTH = Steps(0, 0), Steps(1, 1), Steps(0, 1)


@pytest.mark.parametrize(
    ("asks", "want"),
    [
        pytest.param(
            [part(60, 6, steps=THEN), part(70, 7, steps=FIRST)], [(0, 70, 7)], id="each fits alone on one GPU"
        ),
        pytest.param([part(60, 6, steps=THEN), part(20, 9, steps=FIRST)], [(0, 60, 9)], id="the larger of each amount"),
        pytest.param(
            [part(60, 6, steps=BOTH), part(70, 7, steps=FIRST)], [(0, 70, 7), (1, 60, 6)], id="beside a sidecar"
        ),
        pytest.param(
            [part(10, 6, steps=BOTH), part(70, 3, steps=FIRST), part(30, 4, steps=THEN)], [(0, 80, 10)], id="all on one"
        ),
        pytest.param([part(10, 1, steps=THEN), DeviceAsk("gpu", 1, steps=FIRST)], [(0, 100, 10)], id="whole first"),
        pytest.param(
            [DeviceAsk("gpu", 2, steps=THEN), DeviceAsk("gpu", 1, steps=FIRST)],
            [(0, 100, 10), (1, 100, 10)],
            id="one of two",
        ),
        pytest.param(
            [DeviceAsk("gpu", 1, steps=THEN), DeviceAsk("gpu", 2, steps=FIRST)],
            [(0, 100, 10), (1, 100, 10)],
            id="two, then one",
        ),
        pytest.param(
            [DeviceAsk("gpu", 1, steps=BOTH), DeviceAsk("gpu", 1, steps=FIRST)],
            [(0, 100, 10), (1, 100, 10)],
            id="whole at once",
        ),
    ],
)
@pytest.mark.parametrize("share", list(SharePolicy))
def test_one_after_another_in_the_same_room(asks: Any, want: Any, share: SharePolicy) -> None:
    """DEV-2 what does not run at once takes no device more than it must, whatever the policy."""
    picture = fleet(node("n", gpus=3, memory=TEN))
    decision = plan(picture, request(*asks, share=share))
    assert [(one.minor, one.core_percent, (one.memory_bytes or 0) // GI) for one in decision.grants] == want


def test_the_fuller_gpu_of_those_that_the_pod_holds_anyway() -> None:
    """DEV-2 a larger init container makes the pod's grant as little larger as it can."""
    asked = request(
        part(10, 2, steps=THEN), part(95, 6, steps=THEN), part(90, 5, steps=FIRST), share=SharePolicy.GPUSPREAD
    )
    decision = plan(fleet(node("n", gpus=3, memory=TEN)), asked)
    assert [(one.core_percent, (one.memory_bytes or 0) // GI) for one in decision.grants] == [(95, 6), (10, 2)]


def test_containers_meet_or_part_as_the_policy_says() -> None:
    asked = [part(20, 2, container="a"), part(20, 2, container="b")]
    picture = fleet(node("n", gpus=4, memory=TEN))
    packed, spread = (plan(picture, request(*asked, share=share)) for share in SharePolicy)
    assert [grant.minor for grant in packed.grants] == [0]
    assert packed.summary == "n: gpu 0 (40 core, 4 GiB memory)"
    assert [grant.minor for grant in spread.grants] == [0, 1]
    different = plan(picture, request(part(20, 2), part(90, 2)))
    assert different.summary == "n: gpu 0,1 (shares of several sizes)"


def test_several_whole_devices_are_the_best_set() -> None:
    """CLAIM-4 of two containers with whole GPUs each has the best wired set that is left."""
    picture = fleet(node("n", gpus=8, links=halves(8), taken=[0]))
    decision = plan(picture, request(DeviceAsk("gpu", 4, container="a"), part(10, 1, container="b")))
    assert decision.served(request(DeviceAsk("gpu", 4), part(10, 1))).asks[0].given == (4, 5, 6, 7)


@pytest.mark.parametrize("warm", [0, 1])
def test_a_warm_group_takes_shares_alone(warm: int) -> None:
    """SHARE-2 a GPU that a reservation pod keeps warm is for the container with a share, and nobody gets it whole."""
    groups = [Grouped.OPEN if minor == warm else Grouped.NOT for minor in range(2)]
    rows = [msgspec.structs.replace(device("n", minor), group=group) for minor, group in enumerate(groups)]
    picture = fleet(node("n", others=rows, mode=DEVICE_PLUGIN))
    asked = request(DeviceAsk("gpu", 1, container="a"), part(0, 1, container="b"), dialect=Dialect.HAMI)
    assert plan(picture, asked).minors == ((1 - warm,), (warm,))
    shares = request(part(0, 1, container="a"), part(10, 1, container="b"), dialect=Dialect.HAMI)
    assert plan(picture, shares).minors == ((warm,), (warm,))


def test_one_numa_node_also_for_whole_devices() -> None:
    limits = Limits(one_numa=True)
    picture = fleet(node("n", gpus=8, links=full_mesh(8), taken=[0, 1, 2], numa=lambda minor: minor % 2))
    asked = request(DeviceAsk("gpu", 3, limits=limits))
    assert [grant.minor for grant in plan(picture, asked).grants] == [3, 5, 7]
    four = plan(picture, request(DeviceAsk("gpu", 4, limits=limits)))
    ((_, reason),) = told(four).refused()
    assert (reason.text, reason.resolvable) == ("fewer than 4 whole gpu devices free at one NUMA node", True)
    five = plan(picture, request(DeviceAsk("gpu", 5, limits=limits)))
    ((_, reason),) = told(five).refused()
    assert (reason.text, reason.resolvable) == ("fewer than 5 gpu devices at one NUMA node", False)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 4), st.booleans())
def test_the_best_set_that_one_numa_node_has(data: Any, count: int, several: bool) -> None:
    """CLAIM-4 of equally full nodes the one whose best set at one NUMA node is wired best; of its sets the best one,
    and of equals the one that leaves most to the next pod. On a node also beside another container.
    """
    minor = st.integers(0, 7)
    numas = data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=8, max_size=8))
    taken = data.draw(st.sets(minor, max_size=3))
    links = st.lists(st.tuples(minor, minor, st.integers(1, 4)), max_size=8)
    names = "a" if several else "ab"
    picture = fleet(
        *(node(name, gpus=8, links=data.draw(links), taken=taken, numa=numas.__getitem__) for name in names)
    )
    free = [place for place in range(8) if place not in taken]
    ways = [
        (-topology.score(some), name, -topology.score([one for one in free if one not in some]), some)
        for name, topology in zip(names, picture.node_topology, strict=True)
        for numa in (0, 1)
        for some in itertools.combinations([place for place in free if numas[place] == numa], count)
    ]
    bound = DeviceAsk("gpu", count, limits=Limits(one_numa=True), container="a")
    decision = plan(picture, request(bound, *[part(0, 1, container="b")] * several))
    given = decision.minors[0] if several and ways else tuple(grant.minor for grant in decision.grants)
    _, want_node, _, want = min(ways, default=(0, None, 0, ()))
    assert (decision.node, given) == (want_node, want)


@pytest.mark.parametrize("policy", list(Policy))
def test_shares_at_one_numa_node(policy: Policy) -> None:
    picture = fleet(node("n", gpus=4, memory=TEN, used={0: (50, GI)}, numa=lambda minor: minor % 2))
    asked = request(part(60, 1, 2, limits=Limits(one_numa=True)), policy=policy)
    assert [grant.minor for grant in plan(picture, asked).grants] == [1, 3]


def test_who_may_not_have_a_device_is_reported() -> None:
    """VIEW-3 device by device."""
    picture = fleet(node("n", gpus=2))
    asked = request(DeviceAsk("gpu", 1, limits=Limits(models=("A100",))))
    decision = plan(picture, asked)
    assert [reason.text for _, reason in told(decision).refused()] == ["no gpu that the pod's annotations allow"]
    assert {one.reason for one in explain_devices(picture, asked, 0)} == {"ruled out by the pod's annotations"}
    several = request(part(50, 81), part(50, 1))
    assert {one.reason for one in explain_devices(picture, several, 0)} == {""}


def test_pods_with_limits_are_not_for_the_kubelets_choice() -> None:
    """DEV-3 on a node where the device plugin chooses nobody could keep to them."""
    picture = fleet(node("n", gpus=2, mode=DEVICE_PLUGIN))
    assert plan(picture, whole(dialect=Dialect.NATIVE)).node == "n"
    limited = request(DeviceAsk("gpu", 1, limits=Limits(uuids=("GPU-n-0",))), dialect=Dialect.NATIVE)
    assert plan(picture, limited).node is None


def hostile(nodes: int) -> tuple[Any, DeviceRequest]:
    """Nodes in all of different states, and a pod that nearly fits on each: the sums do not tell that it cannot."""
    rows = [
        node(
            f"n{number:04}",
            others=[
                device(f"n{number:04}", minor, memory=80 * GI, used=(0, (number * 8 + minor) * 1000))
                for minor in range(8)
            ],
        )
        for number in range(nodes)
    ]
    return build_snapshot(rows), request(*[part(0, 40 + number % 3, container=f"c{number}") for number in range(17)])


def tries_left(decision: Decision, picture: Snapshot) -> int:
    """Sets of devices that the decision could still have tried."""
    containers = planning._again(decision, picture).containers
    assert containers is not None
    return containers._left


def test_a_search_without_end_ends() -> None:
    """CLAIM-4 the ways that are tried are bounded for the whole request, and whoever was not looked at to the end is
    told so.
    """
    picture, asked = hostile(200)
    decision = plan(picture, asked)
    assert decision.node is None
    assert set(told(decision).counts()) == {TOO_MANY_WAYS}
    assert all(reason.resolvable for _, reason in told(decision).refused())
    assert -TRIES_A_NODE <= tries_left(decision, picture) <= 0


def test_one_look_at_the_best_node_is_enough() -> None:
    """CLAIM-4 a pod that fits is not tried on every node; asked about one node, only that one is looked at."""
    picture, _ = hostile(300)
    asked = request(part(10, 1, container="a"), part(20, 2, container="b"))
    assert tries_left(plan(picture, asked), picture) == TRIES - 2
    one = plan(picture, asked, candidates=[7])
    assert one.node == "n0007"
    assert tries_left(one, picture) == TRIES - 2
