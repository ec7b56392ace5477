"""What never happens in a plan, whatever the fleet and whatever is asked of it."""

import random
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.build import build_snapshot
from allocations.engine.plan import feasible, plan, verdicts_of
from claims.dialects.request import DeviceAsk, Joint, Policy, SharePolicy
from tests.builders import GI, MI, apply, nic, node, request, share, told, whole

ASKED = st.one_of(
    st.builds(whole, st.integers(1, 4), policy=st.sampled_from(Policy), policy_strict=st.booleans()),
    st.builds(
        share,
        core=st.integers(1, 100),
        ratio=st.one_of(st.none(), st.integers(1, 100)),
        count=st.integers(1, 3),
        policy=st.sampled_from(Policy),
        share=st.sampled_from(SharePolicy),
    ),
    st.builds(share, core=st.integers(0, 60), memory=st.integers(1, 90 * GI)),
    st.builds(lambda count: request(DeviceAsk("gpu", 1), DeviceAsk("rdma", count)), st.integers(1, 2)),
    st.builds(lambda core: request(DeviceAsk("rdma", 1, core_percent=core)), st.integers(1, 100)),
)


@st.composite
def fleets(draw):
    rows = []
    for number in range(draw(st.integers(1, 4))):
        name = f"n{number}"
        gpus = draw(st.integers(0, 6))
        minor = st.integers(0, max(gpus - 1, 0))
        rows.append(
            node(
                name,
                gpus=gpus,
                links=draw(st.lists(st.tuples(minor, minor, st.integers(0, 4)), max_size=8)),
                memory=draw(st.sampled_from([0, 3, 46068 * MI, 80 * GI])),
                sick=draw(st.sets(minor, max_size=2)),
                others=[nic(name, at) for at in range(draw(st.integers(0, 2)))],
            )
        )
    return rows


@settings(max_examples=120, deadline=None)
@given(fleets(), st.lists(ASKED, min_size=1, max_size=14))
def test_capacity_is_never_exceeded(rows, requests):
    """LEASE-2 plans applied in sequence never take more than a device has, nor a whole device twice."""
    picture = build_snapshot(rows)
    wholly: set[int] = set()
    for asked in requests:
        decision = plan(picture, asked)
        assert (decision.node is None) == (len(decision.grants) == 0)
        granted = [grant.device_id for grant in decision.grants]
        assert len(set(granted)) == len(granted)
        assert not wholly & set(granted)
        rows_taken = picture.index.rows_of(granted)
        assert picture.device_healthy[rows_taken].all()
        for ask in asked.asks if decision.node else ():
            of_type = [grant for grant in decision.grants if grant.type == ask.type]
            assert len(of_type) == ask.count
            if ask.whole:
                assert (picture.core_used[picture.index.rows_of([one.device_id for one in of_type])] == 0).all()
                wholly |= {one.device_id for one in of_type}
        picture = apply(picture, decision)
        assert (picture.core_used <= 100).all()
        assert (picture.memory_used <= picture.memory_total).all()


@settings(max_examples=60, deadline=None)
@given(fleets(), st.lists(ASKED, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_same_input_gives_the_same_plan(rows, requests, shuffler: random.Random):
    """CLAIM-4 whatever order nodes and devices come in, and whatever was worked out before."""
    picture = build_snapshot(rows)
    mixed = list(rows)
    shuffler.shuffle(mixed)
    other = build_snapshot(mixed)
    for asked in requests:
        first, second = plan(picture, asked), plan(other, asked)
        assert first.node == second.node
        assert first.grants == second.grants
        assert first.summary == second.summary
        assert list(told(first).refused()) == list(told(second).refused())
        assert list(feasible(first, picture)) == list(feasible(second, other))
        picture, other = apply(picture, first), apply(other, second)


@settings(max_examples=60, deadline=None)
@given(fleets(), st.lists(ASKED, min_size=1, max_size=8))
def test_resolvable_means_that_an_empty_node_would_serve(rows, requests):
    """Removing pods could help exactly where the reason says so."""
    picture = empty = build_snapshot(rows)
    for asked in requests:
        decision = plan(picture, asked)
        could = {name for name, _ in feasible(plan(empty, asked), empty)}
        for name, reason in told(decision).refused():
            assert reason.resolvable == (name in could), (name, reason)
        picture = apply(picture, decision)


@settings(max_examples=60, deadline=None)
@given(fleets(), st.lists(ASKED, min_size=1, max_size=8), st.data())
def test_verdicts_are_the_same_whenever_they_are_asked_for(rows, requests, data):
    """VIEW-3 a decision is values: what it left out follows from it and the snapshot, whatever was decided since."""
    picture = build_snapshot(rows)
    ids = st.lists(st.sampled_from(picture.device_id.tolist()), max_size=3) if len(picture.device_id) else st.just([])
    for asked in requests:
        blocked, freed = data.draw(ids), [(device, 50, GI) for device in data.draw(ids)]
        at_once = plan(picture, asked, blocked=blocked, freed=freed)
        later = plan(picture, asked, blocked=blocked, freed=freed, verdicts_up_to=0)
        after = apply(picture, at_once)
        plan(after, asked)
        assert (later.node, later.grants, later.summary) == (at_once.node, at_once.grants, at_once.summary)
        assert (later.verdicts is None) == (later.node is not None and len(later.candidates) > 0)
        assert list(verdicts_of(later, picture).refused()) == list(told(at_once).refused())
        assert verdicts_of(later, picture).counts() == told(at_once).counts()
        assert verdicts_of(later, picture).serving() == [name for name, _ in feasible(at_once, picture)]
        picture = after


JOINT = st.builds(
    lambda count, required: request(
        DeviceAsk("gpu", count), DeviceAsk("rdma", 1), joint=Joint(types=("gpu", "rdma"), required=required)
    ),
    st.integers(1, 2),
    st.booleans(),
)
SEVERAL = st.builds(
    lambda count, core: request(DeviceAsk("gpu", count), DeviceAsk("gpu", 1, core_percent=core)),
    st.integers(1, 2),
    st.integers(1, 99),
)


@settings(max_examples=200, deadline=None)
@given(fleets(), st.lists(st.one_of(ASKED, JOINT, SEVERAL), min_size=1, max_size=8), st.data())
def test_the_best_of_all_is_the_best_of_those_that_are_offered(rows, requests, data):
    """Whatever is offered, the decision is the same whether it is looked for among all nodes first or not."""
    picture = build_snapshot(rows)
    names = [row.name for row in rows]
    for asked in requests:
        offered = data.draw(st.lists(st.sampled_from([*names, "unknown"]), unique=True))
        among = [picture.node_index[name] for name in offered if name in picture.node_index]
        last = data.draw(st.sets(st.sampled_from(range(len(names)))))
        want = plan(picture, asked, candidates=among, last=last)
        found = plan(picture, asked, candidates=partial(list, among), offered=offered, last=last)
        assert (found.node, found.grants, found.minors) == (want.node, want.grants, want.minors)
        if found.node is None:
            assert told(found).counts() == told(want).counts()
        else:
            picture = apply(picture, found)
