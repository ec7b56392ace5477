"""What happens between a decision and its write, and between two who move the same row: nothing is lost or kept."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from access.actors import Actor
from access.choices import Role
from allocations import fleet, ledger
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.engine.decision import Decision, Grant
from allocations.engine.plan import plan
from allocations.errors import LostRace
from allocations.models import Allocation
from allocations.reconcile import garbage_collection
from allocations.scheduling.expired_holds import expire_holds
from allocations.services import claim_devices, claim_renew
from audit.choices import EventKind
from audit.models import Event
from claims.dialects.claim_manifest import TTL_SECONDS_MOST
from claims.dialects.request import DeviceAsk, DeviceRequest
from claims.models import GpuClaim
from nodes import services as node_services
from nodes.choices import NodeState, Presence
from nodes.inventory import parse_node
from nodes.models import Device
from nodes.revisions import next_revision
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems

ADMIN = Actor(name="root", role=Role.ADMIN, namespaces=None)
WHOLE = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1),))
FUTURE = timedelta(hours=1)


def inventory(*gpus: tuple[int, str], memory: str = "80Gi") -> None:
    """PUT node-a with these (minor, uuid)."""
    devices = [{"minor": minor, "uuid": one, "model": "H100", "memory": memory} for minor, one in gpus]
    shape = parse_node({"devices": devices}, name="node-a")
    node_services.inventory_put(shape=shape, actor=ADMIN, now=database_now())


def decided(request: DeviceRequest = WHOLE) -> Decision:
    """What the engine says of the picture of this moment."""
    return plan(fleet.current().snapshot, request)


def held(decision: Decision, *, pod: str = "pod", claim_id: int | None = None) -> uuid.UUID:
    """Hold what was decided."""
    holder = ledger.pod_holder("research", pod, f"uid-{pod}")
    terms = ledger.Terms(holder=holder, request=WHOLE, claim_id=claim_id)
    return ledger.hold(terms, decision=decision, previous=None, now=database_now(), hold_seconds=30)


def test_a_device_that_grew_since_the_decision_is_decided_again(ledger_db: TestDatabase) -> None:
    """LEASE-2 an inventory that changes a size between decision and hold leaves nothing used for ever."""
    assert ledger_db
    inventory((0, "GPU-0"))
    decision = decided()
    inventory((0, "GPU-0"), memory="96Gi")
    with pytest.raises(LostRace):
        held(decision)
    allocation_id = held(decided())
    assert not problems()
    now = database_now()
    ledger.drop_hold(allocation_id=allocation_id, outcome=State.RELEASED, reason="test", now=now, actor="test")
    assert Device.objects.get().memory_used == 0


def test_an_amount_beyond_counting_is_a_lost_race(ledger_db: TestDatabase) -> None:
    """LEASE-6 a running pod whose annotation claims all the memory there can be is a conflict, not an error."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    device = Device.objects.get()
    for pod, memory in (("first", 2**30), ("second", 2**63 - 1)):
        grant = Grant(device.pk, device.uuid, "gpu", 0, core_percent=10, memory_bytes=memory, whole=False)
        terms = ledger.Terms(holder=ledger.pod_holder("research", pod, f"uid-{pod}"), request=WHOLE)
        adopted = partial(ledger.adopt, terms, node="node-a", grants=[grant], now=database_now())
        if pod == "first":
            adopted()
        else:
            with pytest.raises(LostRace):
                adopted()
    assert Device.objects.get().memory_used == 2**30


def test_a_hold_prolonged_meanwhile_is_not_collected(ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 the collector that saw a hold expired loses to the filter that prolonged it."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    allocation_id = held(decided())
    drop = ledger.drop_hold

    def late(**arguments: object) -> bool:
        """The filter comes between the collector's look and its move."""
        live = ledger.read_live(allocation_id)
        assert live is not None
        now = database_now()
        decision = plan(fleet.current().snapshot, WHOLE, own=live.amounts)
        terms = ledger.Terms(holder=live.holder, request=WHOLE)
        ledger.hold(terms, decision=decision, previous=live, now=now + FUTURE, hold_seconds=30)
        return drop(**arguments)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(ledger, "drop_hold", late)
    assert expire_holds(database_now() + timedelta(minutes=1)) == 0
    assert Allocation.objects.get(pk=allocation_id).state == State.HELD


def test_the_same_devices_for_a_changed_claim_are_a_new_hold(ledger_db: TestDatabase) -> None:
    """CLAIM-9 a claim edited while its pod is held counts as it is now, its ttlSeconds too."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    claim = GpuClaimFactory(name="train", spec={"devices": {"count": 1}, "ttlSeconds": 60})
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    node = filtered(pod, ["node-a"])
    GpuClaim.objects.filter(pk=claim.pk).update(spec={"devices": {"count": 1}, "ttlSeconds": 7200})
    assert filtered(pod, ["node-a"]) == node
    assert bound(pod, node) == ""
    allocation = Allocation.objects.get(state=State.BOUND)
    assert allocation.expires_at is not None
    assert allocation.bound_at is not None
    assert allocation.expires_at - allocation.bound_at > timedelta(hours=1)


def test_a_claim_made_again_while_its_pod_is_held_counts_the_pod(ledger_db: TestDatabase) -> None:
    """CLAIM-2 the allocation belongs to the claim that filter found last."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="train")
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    filtered(pod, ["node-a"])
    GpuClaim.objects.all().delete()
    again = GpuClaimFactory(name="train")
    filtered(pod, ["node-a"])
    assert Allocation.objects.get(state__in=LIVE).claim_id == again.pk


def test_a_claim_deleted_between_decision_and_hold(ledger_db: TestDatabase) -> None:
    """CLAIM-3 the hold is made as if the claim had been deleted right after."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    claim = GpuClaimFactory(name="train")
    gone = claim.pk
    decision = decided()
    claim.delete()
    allocation_id = held(decision, claim_id=gone)
    assert Allocation.objects.get(pk=allocation_id).claim_id is None
    assert not problems()


def test_what_was_renewed_meanwhile_is_not_ended(ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-10 whoever was told that his devices are renewed keeps them."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    claim = GpuClaimFactory(name="train", spec={"devices": {"count": 1}, "ttlSeconds": 60})
    allocation = claim_devices(claim=claim, actor=ADMIN)
    late = database_now() + timedelta(seconds=90)
    listed = garbage_collection.time_to_live_over(late)
    assert [one.pk for one in listed] == [allocation.pk]
    claim_renew(claim=claim, actor=ADMIN, ttl_seconds=600, now=late)
    monkeypatch.setattr(garbage_collection, "time_to_live_over", lambda now: listed)
    assert garbage_collection.collect_garbage(now=late, backends=current_backends()).ended == 0
    assert Allocation.objects.get(pk=allocation.pk).state == State.BOUND
    assert not Event.objects.filter(kind=EventKind.ALLOCATION_EXPIRED).exists()


def test_renewing_is_in_the_audit_trail(ledger_db: TestDatabase) -> None:
    """VIEW-6 a new end is a change, and has its event."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    claim = GpuClaimFactory(name="train", spec={"devices": {"count": 1}, "ttlSeconds": 60})
    allocation = claim_devices(claim=claim, actor=ADMIN)
    claim_renew(claim=claim, actor=ADMIN, ttl_seconds=600, now=database_now())
    event = Event.objects.get(kind=EventKind.CLAIM_RENEWED)
    assert (event.actor, event.namespace, event.claim, event.allocation_id) == (
        "root",
        "research",
        "train",
        allocation.pk,
    )


def test_what_a_claim_may_say_may_be_renewed(ledger_db: TestDatabase) -> None:
    """CLAIM-10 renewing by the claim's own ttlSeconds works for the longest one too."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    claim = GpuClaimFactory(name="train", spec={"devices": {"count": 1}, "ttlSeconds": TTL_SECONDS_MOST})
    claim_devices(claim=claim, actor=ADMIN)
    (renewed,) = claim_renew(claim=claim, actor=ADMIN, ttl_seconds=None, now=database_now())
    assert renewed.ttl_seconds == TTL_SECONDS_MOST


def test_a_device_that_comes_back_is_not_buried(ledger_db: TestDatabase) -> None:
    """LEASE-6 collection deletes what is gone at that moment, not what was gone when it looked."""
    inventory((0, "GPU-0"))
    inventory()
    later = datetime.now(UTC) + FUTURE
    if ledger_db.vendor == "sqlite":
        return  # writers are serial: collection looks and deletes in one transaction
    ledger_db.race([lambda: inventory((0, "GPU-0")), lambda: garbage_collection.delete_removed_devices(later)])
    assert list(Device.objects.values_list("uuid", "presence")) == [("GPU-0", Presence.PRESENT)]


def moved_back(**by: float) -> None:
    """Let the live hold be older than it is."""
    for one in Allocation.objects.filter(state=State.HELD):
        one.created_at -= timedelta(**by)
        assert one.hold_until is not None
        one.hold_until -= timedelta(**by)
        one.save(update_fields=["created_at", "hold_until"])


def test_a_hold_past_its_time_has_ended_although_nobody_dropped_it(ledger_db: TestDatabase) -> None:
    """LEASE-3 the pod that comes back after its hold ran out goes elsewhere first."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    NodeFactory(name="node-b", gpus=1)
    GpuClaimFactory(name="train")
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    nodes = ["node-a", "node-b"]
    first = filtered(pod, nodes)
    moved_back(seconds=31)
    second = filtered(pod, nodes)
    assert {first, second} == set(nodes)
    assert not problems()


def test_a_node_that_never_binds_the_pod_lets_it_go(ledger_db: TestDatabase) -> None:
    """LEASE-3 filtered again and again within the hold's time, the pod does not keep its node for ever."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    NodeFactory(name="node-b", gpus=1)
    GpuClaimFactory(name="train")
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    nodes = ["node-a", "node-b"]
    chosen = [filtered(pod, nodes)]
    for _ in range(8):
        moved_back(seconds=20)
        chosen.append(filtered(pod, nodes))
    assert chosen[:3] == [chosen[0]] * 3, "the same question gets the same answer"
    assert set(chosen) == set(nodes)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param({"healthy": False, "health_reason": "Xid 79"}, "", id="fell sick: the other one"),
        pytest.param({"presence": Presence.VANISHED, "healthy": False}, "", id="left: the other one"),
        pytest.param({"stranger": "somebody/else"}, "", id="in a stranger's hands: the other one"),
        pytest.param(None, "node is not ready", id="its node is not ready: refused"),
    ],
)
def test_bind_gives_no_device_that_could_not_be_chosen_now(
    ledger_db: TestDatabase, change: dict[str, object] | None, want: str
) -> None:
    """LEASE-5 what happens to a held device before bind counts: a hold may be eleven minutes old."""
    assert ledger_db
    node = NodeFactory(name="node-a", gpus=2)
    GpuClaimFactory(name="train")
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    chosen = filtered(pod, ["node-a"])
    taken = Device.objects.get(core_used=100)
    if change is None:
        node_services.node_state_set(node=node, state=NodeState.NOT_READY, problem="", actor=ADMIN, now=database_now())
    else:
        with transaction.atomic():
            Device.objects.filter(pk=taken.pk).update(revision=next_revision(), **change)
    assert bound(pod, chosen) == want
    given = Allocation.objects.filter(state=State.BOUND).values_list("devices__uuid", flat=True)
    assert taken.uuid not in given
    assert len(given) == (0 if want else 1)
    assert not [one for one in problems() if not one.startswith("lease")]
