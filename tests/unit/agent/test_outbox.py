"""What an agent still has to say."""

import asyncio

from agent.outbox import SAMPLES_MOST, Measured, Outbox, StateChange
from agent.protocol import MOST_DEVICES, CheckpointEntry, DeviceDetails, Health, decode, encode

BODY = {"name": "n1", "devices": [], "links": []}
ENTRY = CheckpointEntry("pod", "main", "nvidia.com/gpu", ["GPU-1"])


def asleep(outbox: Outbox) -> bool:
    async def ask() -> bool:
        try:
            await asyncio.wait_for(outbox.filled(), 0.01)
        except TimeoutError:
            return True
        return False

    return asyncio.run(ask())


def test_state_goes_before_samples_and_the_machine_before_all() -> None:
    outbox = Outbox()
    outbox.put_checkpoint([ENTRY])
    outbox.put_health({"GPU-1": "Xid 79"})
    outbox.put_inventory(BODY)
    outbox.put_sample({"power_watts": [1]}, at=1.5)
    said = []
    while (change := outbox.next_change()) is not None:
        said.append(change)
        outbox.done(change)
    assert said == [
        StateChange(inventory=BODY, version=1),
        StateChange(health={"GPU-1": "Xid 79"}),
        StateChange(checkpoint=[ENTRY]),
    ]
    assert outbox.next_sample() == Measured({"power_watts": [1]}, 1.5)
    assert outbox.next_sample() is None
    assert asleep(outbox)


def test_what_is_not_acknowledged_is_said_again() -> None:
    """NODE-2 a session that ends before the ack loses no change of state."""
    outbox = Outbox()
    outbox.put_health({"GPU-1": "Xid 79"})
    assert outbox.next_change() == outbox.next_change() == StateChange(health={"GPU-1": "Xid 79"})
    assert not asleep(outbox)


def test_what_changed_while_it_was_said_is_said_again() -> None:
    """NODE-2 the newest form of everything reaches the server."""
    outbox = Outbox()
    outbox.put_health({"GPU-1": "Xid 79", "GPU-2": "Xid 48"})
    outbox.put_inventory(BODY)
    outbox.put_checkpoint([ENTRY])
    first = StateChange(inventory=BODY, version=1), StateChange(health={"GPU-1": "Xid 79", "GPU-2": "Xid 48"})
    newer = {**BODY, "links": [[0, 1, 4]]}
    outbox.put_inventory(newer)
    outbox.put_health({"GPU-1": ""})
    outbox.put_checkpoint([])
    for change in (*first, StateChange(checkpoint=[ENTRY])):
        outbox.done(change)
    left = []
    while (again := outbox.next_change()) is not None:
        left.append(again)
        outbox.done(again)
    assert left == [
        StateChange(inventory=newer, version=2),
        StateChange(health={"GPU-1": ""}),
        StateChange(checkpoint=[]),
    ]


def test_the_server_may_ask_for_the_inventory_again() -> None:
    outbox = Outbox()
    outbox.resend_inventory()
    assert outbox.next_change() is None
    outbox.put_inventory(BODY)
    outbox.done(StateChange(inventory=BODY, version=1))
    assert outbox.next_change() is None
    outbox.resend_inventory()
    assert outbox.next_change() == StateChange(inventory=BODY, version=1)


def test_of_samples_the_oldest_are_dropped() -> None:
    """NODE-2 memory is bounded however long nobody listens."""
    outbox = Outbox()
    for number in range(1000):
        outbox.put_sample({"power_watts": [number]}, at=float(number))
    kept = []
    while (sample := outbox.next_sample()) is not None:
        kept.append(sample.columns["power_watts"][0])
    assert kept == list(range(1000 - SAMPLES_MOST, 1000))
    assert outbox.dropped == 1000 - SAMPLES_MOST


def test_health_of_more_devices_than_a_frame_holds() -> None:
    """NODE-2 GPUs, MIG instances and NICs of one node: all is said, a frame at a time."""
    outbox = Outbox()
    sick = {f"MIG-{number}": "Xid 79" for number in range(2 * MOST_DEVICES + 1)}
    outbox.put_health(sick)
    said: dict[str, str] = {}
    while (change := outbox.next_change()) is not None:
        assert change.health
        assert decode(encode(Health("b", 1, 1.0, dict(change.health))))
        said |= change.health
        outbox.done(change)
    assert said == sick


def test_an_inventory_that_is_asked_for_again_has_the_health_of_now() -> None:
    """NODE-2 a GPU that fell sick since is not told to be well by it."""
    outbox = Outbox()
    device = {"uuid": "GPU-1", "healthy": True}
    outbox.put_inventory({**BODY, "devices": [device, {"uuid": "GPU-2", "healthy": False}]})
    first = outbox.next_change()
    assert first is not None
    outbox.done(first)
    outbox.put_health({"GPU-1": "Xid 79", "GPU-2": ""})
    outbox.resend_inventory()
    again = outbox.next_change()
    assert again is not None
    assert again.inventory is not None
    assert [one["healthy"] for one in again.inventory["devices"]] == [False, True]


def test_health_of_devices_that_were_removed_is_dropped() -> None:
    """NODE-2 nothing of it is sent, and it takes no memory."""
    outbox = Outbox()
    for number in range(100):
        outbox.put_health({f"MIG-{number}": "Xid 79"})
        outbox.forget_health({f"MIG-{number}"})
    assert outbox.next_change() is None
    outbox.put_inventory({**BODY, "devices": [{"uuid": "MIG-7"}]})
    assert outbox.next_change() == StateChange(inventory={**BODY, "devices": [{"uuid": "MIG-7"}]}, version=1)


def test_details_are_said_once_a_session_and_when_they_change() -> None:
    """NODE-2 the newest ones; a session that begins anew is told again."""
    silent = Outbox()
    silent.begin_session()
    assert (silent.next_details(), silent.next_sample()) == ((), None)
    assert asleep(silent)
    outbox = Outbox()
    outbox.put_details([DeviceDetails(ecc_corrected=1)])
    outbox.put_details([DeviceDetails(ecc_corrected=2)])
    assert outbox.next_sample() is None
    assert outbox.next_details() == [DeviceDetails(ecc_corrected=2)]
    outbox.put_details([DeviceDetails(ecc_corrected=2)])
    assert outbox.next_details() == ()
    outbox.begin_session()
    assert outbox.next_details() == [DeviceDetails(ecc_corrected=2)]
    assert outbox.next_sample() is None
    assert asleep(outbox)


def test_what_was_measured_in_another_order_is_dropped() -> None:
    """NODE-1 nobody could tell whose figures they are; an inventory in the same order keeps them."""
    outbox = Outbox()
    devices = [
        {"uuid": "GPU-1", "minor": 1},
        {"uuid": "NIC", "minor": 0, "type": "rdma"},
        {"uuid": "GPU-0", "minor": 0},
    ]
    outbox.put_inventory({**BODY, "devices": devices})
    assert outbox.order == ("GPU-0", "GPU-1")
    outbox.put_sample({"power_watts": [1, 2]}, at=1.0)
    outbox.put_details([DeviceDetails(ecc_corrected=1), DeviceDetails()])
    outbox.put_inventory({**BODY, "devices": [*devices], "labels": {"a": "b"}})
    assert outbox.next_details()
    assert outbox.next_sample() == Measured({"power_watts": [1, 2]}, 1.0)
    outbox.put_sample({"power_watts": [1, 2]}, at=2.0)
    outbox.put_details([DeviceDetails(ecc_corrected=2), DeviceDetails()])
    outbox.put_inventory({**BODY, "devices": [{"uuid": "GPU-1", "minor": 0}, {"uuid": "GPU-0", "minor": 1}]})
    assert (outbox.next_details(), outbox.next_sample(), outbox.dropped) == ((), None, 1)
    assert outbox.order == ("GPU-1", "GPU-0")


def test_what_cannot_be_taken_now_is_held_back() -> None:
    """NODE-2 changes of state wait and none is lost; samples go on, and nobody is awake for nothing."""
    outbox = Outbox()
    outbox.put_health({"GPU-1": "Xid 79"})
    outbox.hold()
    outbox.put_sample({"power_watts": [1]}, at=1.0)
    assert outbox.next_change() is None
    assert outbox.next_sample() is not None
    assert outbox.next_sample() is None
    assert asleep(outbox)
    outbox.release()
    assert not asleep(outbox)
    assert outbox.next_change() == StateChange(health={"GPU-1": "Xid 79"})


def test_a_refused_inventory_is_said_again_when_it_changed_or_in_the_next_session() -> None:
    outbox = Outbox()
    outbox.put_inventory(BODY)
    outbox.refused(StateChange(inventory=BODY, version=1))
    outbox.resend_inventory()
    assert outbox.next_change() is None
    outbox.begin_session()
    assert outbox.next_change() == StateChange(inventory=BODY, version=1)
    outbox.refused(StateChange(inventory=BODY, version=1))
    outbox.put_inventory(BODY)
    assert outbox.next_change() == StateChange(inventory=BODY, version=2)


def test_what_ends_sessions_is_said_again_only_when_it_changed() -> None:
    outbox = Outbox()
    outbox.put_inventory(BODY)
    outbox.put_details([DeviceDetails(ecc_corrected=1)])
    outbox.discard(StateChange(inventory=BODY, version=1))
    outbox.discard(StateChange(details=[DeviceDetails(ecc_corrected=1)]))
    outbox.begin_session()
    outbox.resend_inventory()
    assert (outbox.next_change(), outbox.next_details()) == (None, ())
    outbox.put_inventory(BODY)
    outbox.put_details([DeviceDetails(ecc_corrected=2)])
    assert outbox.next_change() == StateChange(inventory=BODY, version=2)
    assert outbox.next_details() == [DeviceDetails(ecc_corrected=2)]
