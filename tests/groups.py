"""Groups of GPUs behind reservation pods, made by the ledger as a bind makes them, without a cluster.

`share("train", node="n1")` is a bound half of a GPU of n1, in a group that is ready with the GPU that was guessed;
`share("train", node="n1", state=GroupState.WANTED)` stops before. `leave("train")` returns the devices.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from allocations import fleet, ledger
from allocations.choices import GroupState, State
from allocations.engine.plan import plan
from allocations.ledger.group_devices import place_group
from allocations.ledger.group_joining import join_groups
from allocations.ledger.groups import lose_group, note_pods, release_unused
from allocations.models import Allocation, GpuGroup
from claims.dialects.request import DeviceAsk, DeviceRequest
from nodes.models import Device

NAMESPACE = "gpuplane-reservation"
HALF = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1, core_percent=50, memory_ratio=50),))
PATH = (GroupState.WANTED, GroupState.STARTING, GroupState.READY, GroupState.UNPROTECTED)


def whole(count: int) -> DeviceRequest:
    """So many whole GPUs."""
    return DeviceRequest(asks=(DeviceAsk(type="gpu", count=count),))


def share(
    pod: str,
    *,
    node: str,
    namespace: str = "research",
    request: DeviceRequest = HALF,
    state: GroupState = GroupState.READY,
    told: Sequence[str] = (),
    now: datetime | None = None,
) -> GpuGroup:
    """An allocation of the request on the node, and its group in this state; `told`: other GPUs than were guessed."""
    look = fleet.current()
    now = now or datetime.now(UTC)
    decision = plan(look.snapshot, request, candidates=[look.snapshot.node_index[node]])
    holder = ledger.pod_holder(namespace, pod, f"uid-{namespace}-{pod}")
    terms = ledger.Terms(holder=holder, request=request)
    allocation_id = ledger.hold(terms, decision=decision, previous=None, now=look.now, hold_seconds=30)
    assert ledger.reserve([allocation_id], now=now)
    (groups,) = join_groups([allocation_id], pod_namespace=NAMESPACE, now=now, actor="test").values()
    assert groups is not None
    row = GpuGroup.objects.get(pk=groups[0].id)
    for target in PATH[PATH.index(GroupState(row.state)) + 1 : PATH.index(state) + 1]:
        _step(row, target, told, now)
    if state in (GroupState.READY, GroupState.UNPROTECTED):
        assert ledger.bound([allocation_id], now=now)
    row.refresh_from_db()
    return row


def _step(row: GpuGroup, target: GroupState, told: Sequence[str], now: datetime) -> None:
    pod_uid = f"uid-{row.pod_name}"
    match target:
        case GroupState.STARTING:
            note_pods({row.pk: pod_uid}, now=now, actor="test")
        case GroupState.READY:
            guessed = Device.objects.filter(gpu_group=row.name).order_by("minor").values_list("uuid", flat=True)
            place_group(row.pk, pod_uid=pod_uid, uuids=list(told or guessed), now=now, actor="test")
        case _:
            lose_group(row.pk, "its reservation pod is gone", now=now, actor="test")


def allocation_of(pod: str) -> uuid.UUID:
    """The live allocation of the pod."""
    return Allocation.objects.exclude(state__in=(State.RELEASED, State.FAILED)).get(pod_name=pod).pk


def leaving(pod: str) -> None:
    """The pod's devices are being returned."""
    begun = ledger.begin_release(
        allocation_id=allocation_of(pod),
        sources=(State.RESERVED, State.BOUND),
        outcome=State.RELEASED,
        reason="test",
        now=datetime.now(UTC),
        actor="test",
    )
    assert begun


def leave(pod: str) -> None:
    """The pod's devices are returned, and groups that nobody has any more are being released."""
    allocation_id, now = allocation_of(pod), datetime.now(UTC)
    names = set(Device.objects.exclude(gpu_group="").values_list("gpu_group", flat=True))
    leaving(pod)
    assert ledger.finish_release(allocation_id=allocation_id, outcome=State.RELEASED, now=now, actor="test")
    release_unused(names, spare=0, now=now, actor="test")
