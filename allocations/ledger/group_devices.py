"""Moves a group, and all who share it, to the GPUs that its reservation pod has reported.

Called by the step of a bind that follows the wait for the reservation pod, and by `allocations.reconcile` where
the kubelet gave a guessed GPU to another pod. Until then a group has GPUs by guess (`allocations.ledger.groups`).

Invariants: one transaction that locks the node's GPUs; two GPUs exchange all that they hold, so nothing is given twice
and nothing is lost; a GPU that is known to be somebody's is never taken; what moves fits, and is of a model that its
holder permits, or nothing changes.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Final

import msgspec

from allocations.choices import GroupState, State
from allocations.engine.needs import amounts
from allocations.ledger.group_reads import lock_gpus, lock_groups
from allocations.ledger.groups import end_back_off, move_group, write_groups
from allocations.ledger.holder import Holder
from allocations.ledger.reads import request_of
from allocations.models import Allocation, AllocationDevice, GpuGroup
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest
from kube.device_types import GPU
from nodes.choices import Presence
from nodes.models import Device, KubeletCheckpoint
from nodes.revisions import next_revision
from storage.cursors import write_rows
from storage.transactions import atomic_retry

_READ: Final = (
    *("device_id", "type", "minor", "core_percent", "memory_bytes", "whole"),
    *("allocation__state", "allocation__request", "allocation__node__name"),
    *("allocation__namespace", "allocation__pod_name", "allocation__pod_uid", "allocation__holder"),
)
UNKNOWN_STATES: Final = (GroupState.WANTED, GroupState.STARTING)
"""States of groups whose GPUs are a guess."""


class GroupOutcome(Enum):
    """What became of a group whose reservation pod reported its GPUs."""

    READY = auto()
    BUSY = auto()
    """A pod whose guess is in the way is being bound at this moment: ask again soon."""
    REFUSED = auto()
    """The GPUs cannot be the group's."""
    MOVED_ON = auto()
    """The group is not waiting for this any more."""


@dataclass(frozen=True, slots=True)
class LeftLease:
    """A device that a bound pod of the kubelet's choice has no longer, although it has its lease."""

    holder: Holder
    node: str
    minor: int
    uuid: str


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """`reason`: why it was refused. `left`: leases of others that are in the way of the group's. `seconds`: what the
    reservation pod took, where the group became ready by this call.
    """

    outcome: GroupOutcome
    reason: str = ""
    left: tuple[LeftLease, ...] = ()
    seconds: float | None = None


class _Impossible(Exception):
    """The exchange cannot be made; the text says why. Rolls the transaction back."""


class _Busy(Exception):
    """A bind is under way that may take a lease of the device at this moment."""


def place_group(group_id: uuid.UUID, *, pod_uid: str, uuids: Sequence[str], now: datetime, actor: str) -> PlacedGroup:
    """Starting → ready, with these GPUs; all that its sharers hold moves there."""
    try:
        return _place(group_id, pod_uid, tuple(uuids), now, actor)
    except _Impossible as error:
        return PlacedGroup(GroupOutcome.REFUSED, str(error))
    except _Busy:
        return PlacedGroup(GroupOutcome.BUSY)


@atomic_retry
def _place(group_id: uuid.UUID, pod_uid: str, uuids: tuple[str, ...], now: datetime, actor: str) -> PlacedGroup:
    (row,) = lock_groups([group_id]) or (None,)
    if row is None or row.pod_uid != pod_uid:
        return PlacedGroup(GroupOutcome.MOVED_ON)
    if row.state == GroupState.READY and tuple(row.uuids) == uuids:
        return PlacedGroup(GroupOutcome.READY)
    if row.state != GroupState.STARTING:
        return PlacedGroup(GroupOutcome.MOVED_ON)
    devices = lock_gpus([row.node_id])
    real = _real(row, uuids, devices)
    guessed = [device for device in devices.values() if device.gpu_group == row.name]
    exchange = _Exchange(row.node_id, devices, now)
    leaving = [device for device in guessed if device not in real]
    arriving = [device for device in real if device not in guessed]
    left = [lease for pair in zip(leaving, arriving, strict=True) for lease in exchange.swap(*pair)]
    exchange.write()
    end_back_off(row.node_id)
    row.uuids, row.ready_at, row.retries, row.retry_at = list(uuids), now, 0, None
    move_group(row, GroupState.READY, f"its GPU is {', '.join(uuids)}", now=now, actor=actor)
    seconds = max((now - (row.started_at or row.created_at)).total_seconds(), 0.0)
    return PlacedGroup(GroupOutcome.READY, left=tuple(left), seconds=seconds)


@atomic_retry
def vacate_guesses(*, node_id: int, uuids: Collection[str], now: datetime) -> int:
    """Move what is on these GPUs by guess to free GPUs of the node, since others turned out to have them; how many.

    Pods of the kubelet's choice stay: `allocations.reconcile.kubelets` chooses for those that are bound, and drops the
    holds of others.
    """
    devices = lock_gpus([node_id])
    exchange = _Exchange(node_id, devices, now)
    moved = 0
    for device in devices.values():
        if device.uuid not in uuids or not exchange.is_guess_for_group(device):
            continue
        free = (one for one in devices.values() if _is_free(one) and one.uuid not in uuids)
        moved += any(exchange.try_swap(device, one) for one in free)
    exchange.write()
    return moved


@atomic_retry
def move_ending_guesses(*, node_id: int, given: Collection[str], left: Collection[str]) -> int:
    """Move groups that end, and never knew their GPUs, off GPUs that the kubelet gave to others; how many.

    `given`: UUIDs of those GPUs; `left`: of those that their new holders leave, one of which the group's reservation
    pod has until it is gone. A group that finds no other GPU stays.
    """
    devices = lock_gpus([node_id])
    ending = GpuGroup.objects.filter(node=node_id, state=GroupState.RELEASING, uuids=[]).values_list("name", flat=True)
    names = set(ending)
    guesses = [one for one in devices.values() if one.gpu_group in names and one.uuid in given]
    others = [one for one in devices.values() if one.uuid in left and one.uuid not in given and not one.gpu_group]
    moved = list(zip(guesses, others, strict=False))
    for guess, other in moved:
        other.gpu_group, other.gpu_group_open = guess.gpu_group, guess.gpu_group_open
        guess.gpu_group, guess.gpu_group_open = "", False
    write_groups([device for pair in moved for device in pair])
    return len(moved)


def _real(row: GpuGroup, uuids: tuple[str, ...], devices: Mapping[int, Device]) -> list[Device]:
    """The devices of these UUIDs. Raises _Impossible."""
    by_uuid = {device.uuid: device for device in devices.values() if device.presence == Presence.PRESENT}
    if len(set(uuids)) != row.gpus:
        raise _Impossible(f"the reservation pod reported {len(set(uuids))} GPUs, {row.gpus} were asked for")
    unknown = [one for one in uuids if one not in by_uuid]
    if unknown:
        elsewhere = Device.objects.filter(uuid__in=unknown).exclude(presence=Presence.REMOVED).exists()
        whose = "is of another node" if elsewhere else f"is not known on {row.node.name}"
        raise _Impossible(f"the reservation pod reported {unknown[0]}, which {whose}")
    real = [by_uuid[one] for one in uuids]
    for device in real:
        if not device.healthy:
            raise _Impossible(f"the kubelet chose {device.uuid}, which is not healthy")
        if device.is_kept or device.mig:
            raise _Impossible(f"the kubelet chose {device.uuid}, which is held outside gpuplane or closed")
    return real


def _is_free(device: Device) -> bool:
    usable = device.healthy and device.presence == Presence.PRESENT
    return usable and not (device.gpu_group or device.is_held or device.mig)


@dataclass(slots=True)
class _Exchange:
    """Exchanges what GPUs of one node hold; rows are changed at once, devices by `write`."""

    node_id: int
    devices: Mapping[int, Device]
    now: datetime
    _changed: set[int] = field(default_factory=set)
    _record: Mapping[str, str] | None = None

    def swap(self, guess: Device, real: Device) -> list[LeftLease]:
        """Exchange the two. Raises _Impossible, where `real` is known to be somebody's or too small, and _Busy."""
        grants = self._grants(guess, real)
        here, there = ([one for one in grants if one.device_id == device.pk] for device in (guess, real))
        left = self._leases_of(real, there)
        moves = [*(_Move.to(real, grant) for grant in here), *(_Move.to(guess, grant) for grant in there)]
        used = [_fitting(device, [move for move in moves if move.target is device]) for device in (guess, real)]
        (guess.core_used, guess.memory_used), (real.core_used, real.memory_used) = used
        _write(moves)
        _renumber(moves, self.now)
        guess.gpu_group, real.gpu_group = real.gpu_group, guess.gpu_group
        guess.gpu_group_open, real.gpu_group_open = real.gpu_group_open, guess.gpu_group_open
        self._changed |= {guess.pk, real.pk}
        return left

    def try_swap(self, guess: Device, real: Device) -> bool:
        """Exchange the two; False, and nothing is changed, where `real` is too small or of a model not asked for."""
        try:
            self.swap(guess, real)
        except _Impossible:
            return False
        return True

    def is_guess_for_group(self, device: Device) -> bool:
        """Whether it holds something, and only what has it by guess until a reservation pod reports."""
        grants = self._grants(device)
        try:
            self._leases_of(device, grants)
        except (_Impossible, _Busy):
            return False
        return bool(grants) and not any(request_of(one.allocation.request).by_kubelet for one in grants)

    def write(self) -> None:
        """Write the devices that changed."""
        revision = next_revision() if self._changed else 0
        changed = [self.devices[pk] for pk in sorted(self._changed)]
        for device in changed:
            device.revision = revision
        write_rows(changed, ("core_used", "memory_used", "gpu_group", "gpu_group_open", "revision"))

    def _grants(self, *devices: Device) -> list[AllocationDevice]:
        live = AllocationDevice.objects.filter(device__in=[device.pk for device in devices], live=True)
        return list(live.select_related("allocation__node").only(*_READ).order_by("pk"))

    def _leases_of(self, device: Device, grants: Iterable[AllocationDevice]) -> list[LeftLease]:
        """The leases that move with the grants. Raises _Impossible where one is no guess, _Busy."""
        if device.gpu_group:
            group = GpuGroup.objects.filter(name=device.gpu_group, node=self.node_id).exclude(state=GroupState.GONE)
            if not group.filter(state__in=UNKNOWN_STATES).exists():
                raise _Impossible(f"the kubelet chose {device.uuid}, which another group has")
            return []
        return [lease for grant in grants for lease in self._lease_of(device, grant)]

    def _lease_of(self, device: Device, grant: AllocationDevice) -> list[LeftLease]:
        allocation = grant.allocation
        by_kubelet = request_of(allocation.request).by_kubelet
        if not by_kubelet:
            if allocation.state in (State.HELD, State.RESERVED):  # its own group is still to begin
                return []
            raise _Impossible(f"the kubelet chose {device.uuid}, which is allocated")
        if allocation.state == State.HELD:
            return []
        if allocation.state != State.BOUND:
            raise _Busy
        if self._recorded().get(device.uuid) == allocation.pod_uid:
            raise _Impossible(f"the kubelet chose {device.uuid}, which it gave to another pod before")
        holder = Holder(
            namespace=allocation.namespace,
            identity=allocation.holder,
            pod_name=allocation.pod_name,
            pod_uid=allocation.pod_uid,
        )
        return [LeftLease(holder, allocation.node.name, device.minor, device.uuid)]

    def _recorded(self) -> Mapping[str, str]:
        """UUID → the pod that has the GPU by the kubelet's record."""
        if self._record is None:
            known = KubeletCheckpoint.objects.filter(node=self.node_id).values_list("entries", flat=True).first()
            self._record = {name: pod for pod, _, _, names in known or () for name in names}
        return self._record


@dataclass(frozen=True, slots=True)
class _Move:
    """One grant and the device that it moves to, with its amounts there."""

    grant: AllocationDevice
    target: Device
    core: int
    memory: int

    @classmethod
    def to(cls, target: Device, grant: AllocationDevice) -> _Move:
        """Raises _Impossible."""
        return cls(grant, target, *_amounts_on(grant, target))

    def written(self) -> AllocationDevice:
        """The grant's row as it is to be."""
        return AllocationDevice(
            pk=self.grant.pk,
            device_id=self.target.pk,
            uuid=self.target.uuid,
            minor=self.target.minor,
            core_percent=self.core,
            memory_bytes=self.memory,
            live=True,
        )


def _write(moves: Sequence[_Move]) -> None:
    """Take the grants off their devices first: no two may have a whole one at any moment."""
    rows = [move.written() for move in moves]
    AllocationDevice.objects.filter(pk__in=[row.pk for row in rows]).update(live=False, device=None)
    write_rows(rows, ("device", "uuid", "minor", "core_percent", "memory_bytes", "live"))


def _fitting(device: Device, moves: Sequence[_Move]) -> tuple[int, int]:
    """Core percent and bytes that the device will have in use. Raises _Impossible where that is too much."""
    core, memory = sum(move.core for move in moves), sum(move.memory for move in moves)
    if core > CORE_WHOLE or memory > device.memory_bytes:
        raise _Impossible(f"the kubelet chose {device.uuid}, which is too small for those who share it")
    return core, memory


def _renumber(moves: Sequence[_Move], now: datetime) -> None:
    """Note in the allocations where they moved; the minors of each container's devices where the request has them."""
    minors: dict[uuid.UUID, dict[int, int]] = defaultdict(dict)
    for move in moves:
        minors[move.grant.allocation_id][move.grant.minor] = move.target.minor
    held = AllocationDevice.objects.filter(allocation__in=minors, live=True, type=GPU).order_by("minor")
    minors_now: dict[uuid.UUID, list[int]] = defaultdict(list)
    for key, minor in held.values_list("allocation_id", "minor"):
        minors_now[key].append(minor)
    for key, renamed in minors.items():
        allocation = next(move.grant.allocation for move in moves if move.grant.allocation_id == key)
        request = request_of(allocation.request)
        gpus = ",".join(map(str, minors_now[key]))
        summary = f"{allocation.node.name}: gpu {gpus} (the kubelet's choice)"
        columns: dict[str, object] = {"changed_at": now, "summary": summary}
        if any(ask.given for ask in request.asks):
            asks = tuple(
                msgspec.structs.replace(ask, given=tuple(renamed.get(minor, minor) for minor in ask.given))
                for ask in request.asks
            )
            columns["request"] = msgspec.to_builtins(msgspec.structs.replace(request, asks=asks))
        Allocation.objects.filter(pk=key).update(**columns)


def _amounts_on(grant: AllocationDevice, target: Device) -> tuple[int, int]:
    """Core percent and bytes of the grant on that device. Raises _Impossible where its holder does not permit it."""
    request = request_of(grant.allocation.request)
    ask = _ask_of(grant, request)
    if ask is None:  # adopted: what it asked for is not known
        return grant.core_percent, grant.memory_bytes
    models = {model.casefold() for model in ask.models}
    limited = ask.limits is not None and not ask.limits.permit(
        uuid=target.uuid, model=target.model, memory_total=target.memory_bytes
    )
    if limited or (models and target.model.casefold() not in models):
        raise _Impossible(f"the kubelet chose {target.uuid} of model {target.model}, which was not asked for")
    taken = amounts(ask, target.memory_bytes)
    if taken is None:
        raise _Impossible(f"the kubelet chose {target.uuid}, which has no memory to share")
    return taken


def _ask_of(grant: AllocationDevice, request: DeviceRequest) -> DeviceAsk | None:
    """The request's only ask for GPUs. Of several, each keeps the amounts that were worked out together."""
    asks = [ask for ask in request.asks if ask.type == GPU]
    return asks[0] if len(asks) == 1 and asks[0].whole == grant.whole else None
