"""Why each device of a node can or cannot serve."""

from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.explain import count_devices, explain_devices
from allocations.engine.plan import plan
from claims.dialects.request import DeviceAsk, Limits
from tests.builders import GI, fleet, nic, node, request, share, whole


def told(picture, asked):
    return {(one.type, one.minor): one.reason for one in explain_devices(picture, asked, 0)}


def test_every_reason_a_share_can_meet():
    """VIEW-3 device by device."""
    picture = fleet(
        node("a", gpus=5, used={0: (60, 0), 1: (0, 70 * GI), 4: (10, GI)}, sick=[2], taken=[3], others=[nic("a", 0)])
    )
    assert told(picture, share(core=50, memory=16 * GI)) == {
        ("gpu", 0): "50 core asked, 40 free",
        ("gpu", 1): "16 GiB memory asked, 10 GiB free",
        ("gpu", 2): "not healthy",
        ("gpu", 3): "50 core asked, 0 free",
        ("gpu", 4): "",
        ("rdma", 0): "not of a type asked for",
    }


def test_devices_are_counted_by_their_reason():
    """VIEW-3 over the whole fleet: of the types asked for, however much each device has left."""
    picture = fleet(
        node("a", gpus=4, used={0: (60, 0), 1: (80, 0), 2: (0, 70 * GI)}, sick=[3], others=[nic("a", 0)]),
        node("b", gpus=2, used={0: (70, 0)}, model="L40S", memory=10 * GI),
    )
    assert count_devices(picture, share(core=50, memory=16 * GI)) == {
        "less than 50 core free": 2,
        "smaller than 16 GiB": 2,
        "less than 16 GiB memory free": 1,
        "not healthy": 1,
    }
    assert count_devices(picture, share(ratio=50)) == {"not healthy": 1, "less than 50% memory free": 1}
    assert count_devices(picture, whole(models=("L40S",))) == {
        "of another model": 3,
        "in use, a whole device is asked": 1,
        "not healthy": 1,
    }
    limits = Limits(uuids=("GPU-a-0", "GPU-b-1"))
    assert count_devices(picture, request(DeviceAsk("gpu", 1, core_percent=0, limits=limits))) == {
        "ruled out by the pod's annotations": 3,
        "not healthy": 1,
    }


def test_whole_models_and_sizes():
    picture = fleet(node("a", gpus=2, taken=[1], others=[nic("a", 0)]))
    assert told(picture, whole())[("gpu", 1)] == "in use, a whole device is asked"
    assert told(picture, whole(models=("B200",)))[("gpu", 0)] == "model H100 was not asked for"
    assert told(picture, share(memory=96 * GI))[("gpu", 0)] == "96 GiB memory asked, the device has 80 GiB"
    asked = request(DeviceAsk("rdma", 1, core_percent=0, memory_ratio=50))
    assert told(picture, asked)[("rdma", 0)] == "has no memory to share"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_agrees_with_the_plan(data):
    used = st.tuples(st.sampled_from([0, 0, 50, 100]), st.sampled_from([0, 0, 40 * GI, 80 * GI]))
    picture = fleet(
        node(
            "a",
            gpus=4,
            used=data.draw(st.dictionaries(st.integers(0, 3), used)),
            sick=data.draw(st.sets(st.integers(0, 3), max_size=2)),
        )
    )
    asked = data.draw(
        st.sampled_from(
            [whole(), share(core=50), share(ratio=50), share(core=60, memory=50 * GI), share(memory=96 * GI)]
        )
    )
    decision = plan(picture, asked)
    serving = [one.uuid for one in explain_devices(picture, asked, 0) if not one.reason]
    assert (decision.node is not None) == bool(serving)
    assert all(grant.uuid in serving for grant in decision.grants)
