"""`resize_share`: one share gets new amounts, if its devices and its queue have room.

Invariants: a share never gets less memory than is measured in use on its device beyond what the other sharers were
given (the driver does not say whose a process is); where nothing was measured lately, nothing is known to be in use.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import structlog

from access.errors import Conflict
from allocations import ledger
from allocations.backends import Backends
from allocations.choices import State
from allocations.engine.queueing.growth import growth_refusal
from allocations.engine.resize import Amounts, Resized, Sizing, resized
from allocations.errors import LostRace, MovedOn
from allocations.ledger.device_reservations import KeptFor, Taker
from allocations.ledger.queue_fence import Fence, read_fence
from allocations.models import Allocation
from allocations.scheduling.queueing.round_input import InputReader
from allocations.scheduling.resizing.results import write_result
from claims.membership import Membership, is_queued
from claims.queues import stored_queues
from kube.errors import KubeError
from kube.quantities import format_bytes
from nodes.choices import NodeState, Presence
from nodes.live.reads import latest_of
from nodes.models import Device

TRIES: Final = 5

log = structlog.get_logger(__name__)


class _Plan(NamedTuple):
    """What was decided, on which row."""

    live: ledger.Live
    seen: datetime
    change: Resized
    taker: Taker
    fence: Fence | None


def resize_share(allocation_id: uuid.UUID, amounts: Amounts, *, backends: Backends, now: datetime, actor: str) -> bool:
    """Give the share new amounts; False where it has them already. Raises Conflict with the reason."""
    plan = _resized_in_ledger(allocation_id, amounts, now, actor)
    if backends.cluster is None or not plan.live.holder.pod_uid:
        return bool(plan.change.sizings)
    try:
        write_result(backends.cluster, allocation_id)
    except KubeError as error:  # the ledger has it; a comparison writes the annotations
        log.warning("resize.result_unwritten", pod=plan.live.holder.label, error=str(error))
    return bool(plan.change.sizings)


def _resized_in_ledger(allocation_id: uuid.UUID, amounts: Amounts, now: datetime, actor: str) -> _Plan:
    """Decide on the rows as they are, and write it; again where they changed meanwhile."""
    for _ in range(TRIES):
        plan = _decided(allocation_id, amounts, now)
        if plan.change.request == plan.live.request:
            return plan
        try:
            ledger.resize(
                allocation_id=allocation_id,
                seen=plan.seen,
                change=plan.change,
                taker=plan.taker,
                actor=actor,
                fence=plan.fence,
            )
        except (LostRace, MovedOn):
            continue
        return plan
    raise Conflict("others changed the allocation or took the room first, again and again")


def _decided(allocation_id: uuid.UUID, amounts: Amounts, now: datetime) -> _Plan:
    row = Allocation.objects.select_related("node").filter(pk=allocation_id).first()  # before what it holds
    live = ledger.read_live(allocation_id)
    if row is None or live is None or live.state is not State.BOUND:
        raise Conflict("only the share of a bound allocation can be resized")
    change = resized(live.request, live.grants, live.memory_total, amounts)
    if isinstance(change, str):
        raise Conflict(change)
    # one that is no pod ranks below every pod
    taker = Taker(live.holder.pod_uid, row.pod_priority if live.holder.pod_uid else None, now)
    fence = None
    if any(one.grows for one in change.sizings):
        if row.node.state != NodeState.READY or row.node.problem:
            raise Conflict(f"node {live.node} takes nothing new: {row.node.problem or row.node.state}")
        fence = _let_by_queues(row, live, change)
    _check_devices(live, change.sizings, taker)
    return _Plan(live, row.changed_at, change, taker, fence)


def _let_by_queues(row: Allocation, live: ledger.Live, change: Resized) -> Fence | None:
    """The fence of the queues' decision, None for a pod outside them. Raises Conflict with their reason."""
    membership = Membership(row.queue, row.gang, row.preemptible)
    if not is_queued(membership, row.namespace, stored_queues()):
        return None
    fence = read_fence()
    decided_by = InputReader().read(()).decision_input
    after = {one.grant.device_id: one.after for one in change.sizings}
    grants = [after.get(grant.device_id, grant) for grant in live.grants]
    held = [(grant.device_id, grant.core_percent, grant.memory_bytes or 0) for grant in grants]
    why = growth_refusal(decided_by, live.holder.identity, held)
    if why:
        raise Conflict(why)
    return fence


def _check_devices(live: ledger.Live, sizings: Sequence[Sizing], taker: Taker) -> None:
    """Raises Conflict for a device without room, or with more in use than would be left."""
    devices = {device.pk: device for device in Device.objects.filter(pk__in=[one.grant.device_id for one in sizings])}
    for one in sizings:
        device = devices.get(one.grant.device_id)
        if device is None:
            raise Conflict("the device is gone")
        if one.grows:
            _check_room(one, device, taker)
    if any(one.memory_added < 0 for one in sizings):
        _check_measured(live.node, sizings, devices, taker.now)


def _check_room(one: Sizing, device: Device, taker: Taker) -> None:
    label = f"{device.type} {device.minor}"
    problem = _problem(device)
    if problem:
        raise Conflict(f"{label} gives nothing more: {problem}")
    until = device.kept_until
    if until is not None and KeptFor.read(device.kept_for, device.kept_priority, until).bars(taker):
        raise Conflict(f"what {label} has free is kept for another pod")
    core, memory = 100 - device.core_used, device.memory_bytes - device.memory_used
    if one.core_added > core or one.memory_added > memory:
        raise Conflict(
            f"{label} has {core} core and {format_bytes(max(memory, 0))} free; the share needs "
            f"{max(one.core_added, 0)} core and {format_bytes(max(one.memory_added, 0))} more"
        )


def _problem(device: Device) -> str:
    """Why the device gets no new holder, empty where it may: the condition of the ledger's takes."""
    if not device.healthy:
        return device.health_reason or "not healthy"
    if device.presence != Presence.PRESENT:
        return "not there any more"
    if device.stranger or device.conflict or device.closed:
        return "it is closed to newcomers"
    if device.gpu_group and not device.gpu_group_open:
        return "its reservation pod is lost, or goes"
    return "it is in MIG mode" if device.mig else ""


def _check_measured(node: str, sizings: Sequence[Sizing], devices: dict[int, Device], now: datetime) -> None:
    sample, _ = latest_of(node)
    if sample is None or sample.is_old(now=now.timestamp()):
        return
    for one in sizings:
        values = sample.of(one.grant.uuid) if one.memory_added < 0 else None
        used = None if values is None else values["memory_used_bytes"]
        if used is None:
            continue
        others = devices[one.grant.device_id].memory_used - (one.grant.memory_bytes or 0)
        if one.memory_bytes < used - others:
            raise Conflict(
                f"{one.grant.type} {one.grant.minor} has {format_bytes(used)} in use, and its other sharers were given "
                f"{format_bytes(others)}: the share needs {format_bytes(used - others)} at least"
            )
