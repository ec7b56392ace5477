"""Pods placed where kubelets choose: what the ledger guessed when it placed a pod gives way to what the kubelet chose (DEV-8).

Called by a comparison, before pods are adopted. The kubelet's own record (`nodes.checkpoints`) says who has what. Kept true: a pod of which it
does not speak yet keeps as many devices, others where its own turned out to be somebody else's; a device that the record gives to a pod
unknown to the ledger is left to that one; what cannot be so is reported and changes nothing on that node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from uuid import UUID

from allocations import ledger
from allocations.choices import State
from allocations.engine.decision import Grant
from allocations.errors import LostRace, MovedOn
from allocations.leases.port import Want, lease_name
from allocations.ledger.holder import Holder
from allocations.models import Allocation
from allocations.reconcile.adoption import Closed, GivenByPod, drop_holds, names_of
from allocations.reconcile.report import ACTOR, Difference
from allocations.selectors import granted, holding_pods
from claims.dialects.device_names import Names
from claims.dialects.read_running import kubelet_uid, may_be_gpu
from claims.dialects.request import CORE_WHOLE
from kube.device_types import GPU
from kube.objects import Pod
from nodes.choices import Presence
from nodes.models import Device


@dataclass(frozen=True, slots=True)
class Moved:
    """An allocation that has other devices now. `left`: the leases of those that it had, and has no more."""

    allocation_id: UUID
    holder: Holder
    node: str
    left: tuple[Want, ...]


@dataclass(slots=True)
class Corrected:
    """Allocations that got other devices; and what cannot be right. `closed`: what pods hold, or may hold, and the ledger cannot follow."""

    moved: list[Moved] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    closed: Closed = field(default_factory=dict)


@dataclass(slots=True)
class _Choice:
    """One allocation: the UUIDs that it has, and those that it should have; `known`: by the kubelet's word."""

    row: Allocation
    has: frozenset[str]
    gets: frozenset[str]
    known: bool


def correct_choices(*, pods: Mapping[str, Pod], given: GivenByPod, now: datetime) -> Corrected:
    """Node by node, whatever mode a node is in by now. `pods`: those of the cluster, by UID."""
    done = Corrected()
    by_node: dict[str, list[Allocation]] = {}
    bound = Allocation.objects.filter(state=State.BOUND, request__by_kubelet=True)
    for row in (
        bound.select_related("node")
        .defer("node__links", "node__disputed")
        .prefetch_related(granted())
        .order_by("created_at")
    ):
        if row.pod_uid in pods:
            by_node.setdefault(row.node.name, []).append(row)
    if by_node:
        there = _devices_of(by_node)
        record = _Record(pods, given, {node: names_of(node, there[node].values()) for node in by_node})
        strangers = _strangers(pods, record, holding_pods())
        for node, rows in by_node.items():
            _correct(node, rows, record, there[node], strangers.get(node, frozenset()), done, now)
    return done


def _devices_of(nodes: Iterable[str]) -> dict[str, dict[str, Device]]:
    """Node → its GPUs by UUID, in the order of their minors."""
    found: dict[str, dict[str, Device]] = {node: {} for node in nodes}
    there = Device.objects.filter(node__name__in=found, type=GPU).exclude(presence=Presence.REMOVED)
    for device in there.select_related("node").defer("node__links", "node__disputed").order_by("minor"):
        found[device.node.name][device.uuid] = device
    return found


class _Record:
    """What the kubelet of a node says of the pods."""

    def __init__(self, pods: Mapping[str, Pod], given: GivenByPod, names: Mapping[str, Names]) -> None:
        self._pods = pods
        self._given = given
        self._names = names

    def gpus(self, node: str, pod_uid: str) -> frozenset[str]:
        """UUIDs of the GPUs that it gave to the pod, its own word for one that the node does not have; empty while it says nothing."""
        pod = self._pods[pod_uid]
        names = self._names.get(node)
        words = {
            word
            for one in self._given.get((node, kubelet_uid(pod)), ())
            for word in one.devices
            if may_be_gpu(one.resource, word)
        }
        return frozenset((names.find(word) if names is not None else None) or word for word in words)


def _strangers(pods: Mapping[str, Pod], record: _Record, known: set[str]) -> dict[str, frozenset[str]]:
    """Node → GPUs that its kubelet gave to living pods of which the ledger does not know."""
    found: dict[str, frozenset[str]] = {}
    for uid, pod in pods.items():
        if uid not in known and pod.spec.node_name and not pod.finished:
            gpus = record.gpus(pod.spec.node_name, uid)
            if gpus:
                found[pod.spec.node_name] = found.get(pod.spec.node_name, frozenset()) | gpus
    return found


def _correct(
    node: str,
    rows: Sequence[Allocation],
    record: _Record,
    devices: Mapping[str, Device],
    strangers: frozenset[str],
    done: Corrected,
    now: datetime,
) -> None:
    choices = [_choice(row, record.gpus(node, row.pod_uid)) for row in rows]
    sound = []
    for choice, problem in zip(choices, _problems(node, choices, devices), strict=True):
        if problem:
            row = choice.row
            disputed = _disputed([choice], devices)
            done.differences.append(Difference(problem, row.namespace, row.pod_name, node, row.id, disputed))
            _close(choice, devices, problem, done)
        else:
            sound.append(choice)
    kept = {uuid for choice in choices if choice not in sound for uuid in choice.has}
    _move_guesses(sound, devices, strangers | kept)
    changed = [choice for choice in sound if choice.gets != choice.has]
    outcome = _write(node, changed, devices, now) if changed else _Outcome.LATER
    if outcome is _Outcome.DONE:
        done.moved += [_moved(node, choice, devices) for choice in changed]
    elif outcome is _Outcome.LOST:
        for choice in changed:  # one by one: whoever does not see a pod's namespace reads nothing of it
            row, disputed = choice.row, _disputed([choice], devices)
            problem = f"the kubelet of {node} gave devices to {_label(row)} that the ledger gave to others"
            done.differences.append(Difference(problem, row.namespace, row.pod_name, node, row.id, disputed))


def _disputed(choices: Sequence[_Choice], devices: Mapping[str, Device]) -> tuple[tuple[int, str], ...]:
    """What the kubelet gave these pods, and the ledger cannot."""
    return tuple(
        (devices[uuid].pk, _label(choice.row))
        for choice in choices
        for uuid in sorted(choice.gets - choice.has if choice.known else ())
        if uuid in devices
    )


def _close(choice: _Choice, devices: Mapping[str, Device], problem: str, done: Corrected) -> None:
    """Where the kubelet gave the pod a device that the node does not have, it may have any of them: nobody new gets one."""
    if choice.gets - devices.keys():
        for device in devices.values():
            done.closed.setdefault(device.pk, f"pod {_label(choice.row)}: {problem}")


def _choice(row: Allocation, told: frozenset[str]) -> _Choice:
    has = frozenset(device.uuid for device in row.devices.all() if device.live)
    return _Choice(row, has, told or has, known=bool(told))


def _problems(node: str, choices: Sequence[_Choice], devices: Mapping[str, Device]) -> list[str]:
    """Why the record cannot be followed, choice by choice; empty where it can."""
    given = Counter(uuid for choice in choices if choice.known for uuid in choice.gets)
    told = []
    for choice in choices:
        strange = sorted(choice.gets - devices.keys()) if choice.known else []
        twice = sorted(uuid for uuid in choice.gets if given[uuid] > 1) if choice.known else []
        if strange:
            told.append(f"the kubelet of {node} gave {strange[0]} to {_label(choice.row)}, and {node} has no such GPU")
        elif twice:
            told.append(f"the kubelet of {node} gave {twice[0]} to {_label(choice.row)} and to another pod")
        else:
            told.append("")
    return told


def _uuids(choices: Sequence[_Choice], *, known: bool) -> list[str]:
    return [uuid for choice in choices if choice.known is known for uuid in choice.gets]


def _move_guesses(choices: Sequence[_Choice], devices: Mapping[str, Device], others: frozenset[str]) -> None:
    """Pods of which the record does not speak yet take what is left. `others`: devices of whom nothing is moved."""
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
        and not (device.stranger or device.conflict or device.closed or device.mig)
    ]
    left.sort(key=lambda uuid: not devices[uuid].healthy)
    for choice in guesses:
        missing = len(choice.has) - len(choice.gets)
        choice.gets |= frozenset(left[:missing])
        del left[:missing]
        if len(choice.gets) < len(choice.has) or not choice.gets <= devices.keys():
            # nothing is left for it: what it guessed is in other hands, and writing will say so
            choice.gets = choice.has


class _Outcome(Enum):
    """What became of writing. LATER: rows changed meanwhile, the next comparison sees what they are now."""

    DONE = auto()
    LATER = auto()
    LOST = auto()


def _write(node: str, changed: Sequence[_Choice], devices: Mapping[str, Device], now: datetime) -> _Outcome:
    """LOST: a device is in other hands than those of the pods in question."""
    changes = [
        ledger.Regrant(
            choice.row.id,
            _holder(choice.row),
            node,
            choice.row.changed_at,
            tuple(_grant(devices[uuid]) for uuid in sorted(choice.gets)),
        )
        for choice in changed
    ]
    for last in (False, True):
        try:
            ledger.regrant(changes, now=now, actor=ACTOR)
        except MovedOn:
            return _Outcome.LATER
        except LostRace as lost:
            if last or not drop_holds(lost.device_ids, now):
                return _Outcome.LOST
        else:
            return _Outcome.DONE
    return _Outcome.LOST


def _moved(node: str, choice: _Choice, devices: Mapping[str, Device]) -> Moved:
    left = [devices[uuid] for uuid in sorted(choice.has - choice.gets) if uuid in devices]
    wants = tuple(Want(lease_name(GPU, node, device.minor), node, device.uuid, whole=True) for device in left)
    return Moved(choice.row.id, _holder(choice.row), node, wants)


def _holder(row: Allocation) -> Holder:
    return ledger.pod_holder(row.namespace, row.pod_name, row.pod_uid)


def _grant(device: Device) -> Grant:
    return Grant(
        device_id=device.pk,
        uuid=device.uuid,
        type=device.type,
        minor=device.minor,
        core_percent=CORE_WHOLE,
        memory_bytes=device.memory_bytes,
        whole=True,
    )


def _label(row: Allocation) -> str:
    return f"{row.namespace}/{row.pod_name}"
