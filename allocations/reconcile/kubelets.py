"""Pods on nodes where the kubelet chooses devices: the ledger's guess is replaced by the kubelet's choice (DEV-8).

Called by a comparison, before pods are adopted. The kubelet's record (`nodes.checkpoints`) says who has what.
Invariants: a pod that the record leaves out keeps as many devices, others where its own turn out to be another's; a
device that the record gives to a pod without a row is left to that pod; a choice that cannot be right is reported and
not followed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from allocations import ledger
from allocations.choices import State
from allocations.errors import LostRace, MovedOn
from allocations.leases.port import Want, lease_name
from allocations.ledger.group_devices import move_ending_guesses, vacate_guesses
from allocations.ledger.holder import Holder
from allocations.models import Allocation
from allocations.reconcile.adoption import Closed, GivenByPod, drop_holds, names_of, whole_grant
from allocations.reconcile.report import ACTOR, Difference
from allocations.reconcile.rows import devices_by_node
from allocations.selectors import granted, holding_pods
from claims.dialects.device_names import Names
from claims.dialects.read_running import kubelet_uid, may_be_gpu
from kube.device_types import GPU
from kube.objects import Pod
from nodes.choices import Presence
from nodes.models import Device


@dataclass(frozen=True, slots=True)
class Moved:
    """An allocation that has other devices now. `left`: leases of the devices that it lost."""

    allocation_id: UUID
    holder: Holder
    node: str
    left: tuple[Want, ...]


class Corrected(NamedTuple):
    """Allocations that got other devices, and choices that cannot be right.

    `closed`: devices that pods hold, or may hold, by such choices.
    """

    moved: Sequence[Moved] = ()
    differences: Sequence[Difference] = ()
    closed: Mapping[int, str] = MappingProxyType({})


@dataclass(slots=True)
class _Choice:
    """One allocation: UUIDs of the GPUs that it has, and of those that it should have; `known`: by the record."""

    row: Allocation
    has: frozenset[str]
    gets: frozenset[str]
    known: bool


def correct_choices(*, pods: Mapping[str, Pod], given: GivenByPod, now: datetime) -> Corrected:
    """Correct the grants, node by node, whatever mode a node is in by now. `pods`: those of the cluster, by UID."""
    by_node: dict[str, list[Allocation]] = defaultdict(list)
    bound = Allocation.objects.filter(state=State.BOUND, request__by_kubelet=True).order_by("created_at")
    for row in bound.select_related("node").defer("node__links", "node__disputed").prefetch_related(granted()):
        if row.pod_uid in pods:
            by_node[row.node.name].append(row)
    if not by_node:
        return Corrected()
    gpus = {
        node: {device.uuid: device for device in devices if device.type == GPU}
        for node, devices in devices_by_node(by_node.keys()).items()
    }
    names = {node: names_of(node, gpus[node].values()) for node in by_node}
    known = holding_pods()
    strangers: dict[str, frozenset[str]] = defaultdict(frozenset)
    for uid, pod in pods.items():
        if uid not in known and pod.spec.node_name in names and not pod.finished:
            strangers[pod.spec.node_name] |= _chosen(pod, pod.spec.node_name, given, names)
    done: list[Corrected] = []
    for node, rows in by_node.items():
        choices = [_choice(row, _chosen(pods[row.pod_uid], node, given, names)) for row in rows]
        done.append(_correct(node, choices, gpus[node], strangers[node], now))
    return Corrected(
        tuple(chain.from_iterable(one.moved for one in done)),
        tuple(chain.from_iterable(one.differences for one in done)),
        dict(chain.from_iterable(one.closed.items() for one in done)),
    )


def _chosen(pod: Pod, node: str, given: GivenByPod, names: Mapping[str, Names]) -> frozenset[str]:
    """UUIDs of the GPUs that the node's kubelet gave to the pod, its own name for one that the node does not have."""
    return frozenset(
        names[node].find(name) or name
        for grant in given.get((node, kubelet_uid(pod)), ())
        for name in grant.devices
        if may_be_gpu(grant.resource, name)
    )


def _choice(row: Allocation, chosen: frozenset[str]) -> _Choice:
    has = frozenset(device.uuid for device in row.devices.all() if device.live)
    return _Choice(row, has, chosen or has, known=bool(chosen))


def _correct(
    node: str,
    choices: Sequence[_Choice],
    devices: Mapping[str, Device],
    strangers: frozenset[str],
    now: datetime,
) -> Corrected:
    sound: list[_Choice] = []
    differences: list[Difference] = []
    closed: Closed = {}
    times_given = Counter(uuid for choice in choices if choice.known for uuid in choice.gets)
    for choice in choices:
        problem = _problem(node, choice, devices, times_given)
        if problem:
            differences.append(_difference(node, choice, devices, problem))
            closed = {**_closed(choice, devices, problem), **closed}
        else:
            sound.append(choice)
    kept = {uuid for choice in choices if choice not in sound for uuid in choice.has}
    _move_guesses(sound, devices, strangers | kept)
    changed = [choice for choice in sound if choice.gets != choice.has]
    try:
        _write(node, changed, devices, now)
    except MovedOn:
        changed = []  # rows changed meanwhile: the next comparison reads them
    except LostRace:
        for choice in changed:  # one each, since an event is shown to those who may see its pod's namespace
            problem = f"the kubelet of {node} gave devices to {_label(choice.row)} that the ledger gave to others"
            differences.append(_difference(node, choice, devices, problem))
        changed = []
    return Corrected([_moved(node, choice, devices) for choice in changed], differences, closed)


def _difference(node: str, choice: _Choice, devices: Mapping[str, Device], problem: str) -> Difference:
    row = choice.row
    return Difference(problem, row.namespace, row.pod_name, node, row.id, _disputed(choice, devices))


def _disputed(choice: _Choice, devices: Mapping[str, Device]) -> tuple[tuple[int, str], ...]:
    """Devices that the kubelet gave the pod and the ledger cannot."""
    lacking = sorted(choice.gets - choice.has) if choice.known else ()
    return tuple((devices[uuid].pk, _label(choice.row)) for uuid in lacking if uuid in devices)


def _closed(choice: _Choice, devices: Mapping[str, Device], problem: str) -> Closed:
    """All of the node's devices, where the kubelet gave the pod one that the node does not have: it may be any."""
    if not choice.gets - devices.keys():
        return {}
    return {device.pk: f"pod {_label(choice.row)}: {problem}" for device in devices.values()}


def _problem(node: str, choice: _Choice, devices: Mapping[str, Device], times_given: Mapping[str, int]) -> str:
    """Why the choice cannot be followed, empty where it can."""
    if not choice.known:
        return ""
    for uuid in sorted(choice.gets - devices.keys()):
        return f"the kubelet of {node} gave {uuid} to {_label(choice.row)}, and {node} has no such GPU"
    for uuid in sorted(choice.gets):
        if times_given[uuid] > 1:
            return f"the kubelet of {node} gave {uuid} to {_label(choice.row)} and to another pod"
    return ""


def _uuids(choices: Sequence[_Choice], *, known: bool) -> list[str]:
    return [uuid for choice in choices if choice.known is known for uuid in choice.gets]


def _move_guesses(choices: Sequence[_Choice], devices: Mapping[str, Device], others: frozenset[str]) -> None:
    """Give pods that the record leaves out what is left. `others`: devices that stay where they are."""
    taken = {*_uuids(choices, known=True), *others}
    ours = {uuid for choice in choices for uuid in choice.has}
    guesses = [choice for choice in choices if not choice.known]
    for choice in guesses:
        choice.gets = choice.has - taken
    left = [
        uuid
        for uuid, device in devices.items()
        if uuid not in taken
        and uuid not in _uuids(choices, known=False)
        and (uuid in ours or not (device.core_used or device.memory_used))
        and device.presence == Presence.PRESENT
        and not (device.stranger or device.conflict or device.closed or device.mig or device.gpu_group)
    ]
    left.sort(key=lambda uuid: not devices[uuid].healthy)
    for choice in guesses:
        missing = len(choice.has) - len(choice.gets)
        choice.gets |= frozenset(left[:missing])
        del left[:missing]
        if len(choice.gets) < len(choice.has) or not choice.gets <= devices.keys():
            # nothing is left: others hold what was guessed, and writing raises LostRace
            choice.gets = choice.has


def _write(node: str, changed: Sequence[_Choice], devices: Mapping[str, Device], now: datetime) -> None:
    """Raises MovedOn, LostRace."""
    if not changed:
        return
    changes = [
        ledger.Reassignment(
            choice.row.id,
            _holder(choice.row),
            node,
            choice.row.changed_at,
            tuple(whole_grant(devices[uuid]) for uuid in sorted(choice.gets)),
        )
        for choice in changed
    ]
    given = {uuid for choice in changed if choice.known for uuid in choice.gets}
    left = {uuid for choice in changed for uuid in choice.has} - {uuid for choice in changed for uuid in choice.gets}
    move_ending_guesses(node_id=changed[0].row.node_id, given=given, left=left)
    try:
        ledger.reassign_devices(changes, now=now, actor=ACTOR)
    except LostRace as lost:
        moved = vacate_guesses(node_id=changed[0].row.node_id, uuids=given, now=now)
        if not (moved or drop_holds(lost.device_ids, now)):
            raise
        ledger.reassign_devices(changes, now=now, actor=ACTOR)


def _moved(node: str, choice: _Choice, devices: Mapping[str, Device]) -> Moved:
    left = [devices[uuid] for uuid in sorted(choice.has - choice.gets) if uuid in devices]
    wants = tuple(Want(lease_name(GPU, node, device.minor), node, device.uuid, whole=True) for device in left)
    return Moved(choice.row.id, _holder(choice.row), node, wants)


def _holder(row: Allocation) -> Holder:
    return ledger.pod_holder(row.namespace, row.pod_name, row.pod_uid)


def _label(row: Allocation) -> str:
    return f"{row.namespace}/{row.pod_name}"
