"""Nodes in mode device-plugin: what the ledger guessed when it placed a pod gives way to what the kubelet chose (DEV-8).

Called by a comparison, before pods are adopted. The kubelet's own record (`nodes.checkpoints`) says who has what. Kept true: a pod of which it
does not speak yet keeps as many devices, others where its own turned out to be somebody else's; a device that the record gives to a pod
unknown to the ledger is left to that one; what cannot be so is reported and changes nothing on that node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from allocations import ledger
from allocations.choices import LIVE, State
from allocations.engine.decision import Grant
from allocations.errors import LostRace, MovedOn
from allocations.leases.port import Want, lease_name
from allocations.ledger.holder import Holder
from allocations.ledger.own import request_of
from allocations.models import Allocation
from allocations.reconcile.adoption import GivenByPod, drop_holds
from allocations.reconcile.report import ACTOR, Difference
from allocations.selectors import granted
from claims.dialects.read_running import kubelet_uid
from claims.dialects.request import CORE_WHOLE
from kube.device_types import GPU
from kube.keys import NATIVE_GPU
from kube.objects import Pod
from nodes.choices import Mode, Presence
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
    """Allocations that got other devices; and what cannot be right."""

    moved: list[Moved] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    """One allocation: the UUIDs that it has, and those that it should have; `known`: by the kubelet's word."""

    row: Allocation
    has: frozenset[str]
    gets: frozenset[str]
    known: bool


def correct_choices(*, pods: Mapping[str, Pod], given: GivenByPod, now: datetime) -> Corrected:
    """Node by node. `pods`: those of the cluster, by UID."""
    done = Corrected()
    by_node: dict[str, list[Allocation]] = {}
    bound = Allocation.objects.filter(state=State.BOUND, node__mode=Mode.DEVICE_PLUGIN).exclude(pod_uid="")
    for row in bound.select_related("node").prefetch_related(granted()).order_by("created_at"):
        if row.pod_uid in pods and request_of(row.request).for_kubelet:
            by_node.setdefault(row.node.name, []).append(row)
    if by_node:
        known = set(Allocation.objects.filter(state__in=LIVE).values_list("pod_uid", flat=True))
        strangers = _strangers(pods, given, known)
        for node, rows in by_node.items():
            _correct(node, rows, _Record(pods, given), strangers.get(node, frozenset()), done, now)
    return done


class _Record:
    """What the kubelet of a node says of the pods."""

    def __init__(self, pods: Mapping[str, Pod], given: GivenByPod) -> None:
        self._pods = pods
        self._given = given

    def gpus(self, node: str, pod_uid: str) -> frozenset[str]:
        """Ids of the GPUs that it gave to the pod, empty while it says nothing."""
        pod = self._pods[pod_uid]
        entries = self._given.get((node, kubelet_uid(pod)), ())
        return frozenset(device for one in entries if one.resource == NATIVE_GPU for device in one.devices)


def _strangers(pods: Mapping[str, Pod], given: GivenByPod, known: set[str]) -> dict[str, frozenset[str]]:
    """Node → GPUs that its kubelet gave to living pods of which the ledger does not know."""
    record = _Record(pods, given)
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
    strangers: frozenset[str],
    done: Corrected,
    now: datetime,
) -> None:
    devices = {
        device.uuid: device
        for device in Device.objects.filter(node__name=node, type=GPU, presence=Presence.PRESENT).order_by("minor")
    }
    choices = [_choice(row, record.gpus(node, row.pod_uid)) for row in rows]
    problem = _impossible(node, choices, devices)
    if not problem:
        _move_guesses(choices, devices, strangers)
        changed = [choice for choice in choices if choice.gets != choice.has]
        problem = _write(node, changed, devices, now) if changed else ""
        if changed and not problem:
            done.moved += [_moved(node, choice, devices) for choice in changed]
    if problem:
        done.differences.append(Difference(problem, node=node))


def _choice(row: Allocation, told: frozenset[str]) -> _Choice:
    has = frozenset(device.uuid for device in row.devices.all() if device.live)
    return _Choice(row, has, told or has, known=bool(told))


def _impossible(node: str, choices: Sequence[_Choice], devices: Mapping[str, Device]) -> str:
    """Why the record cannot be followed, empty when it can."""
    for choice in choices:
        if choice.known and not choice.gets <= devices.keys():
            strange = min(choice.gets - devices.keys())
            return f"the kubelet of {node} gave {strange} to {_label(choice.row)}, and {node} has no such GPU"
    twice = [uuid for uuid, count in Counter(_uuids(choices, known=True)).items() if count > 1]
    return f"the kubelet of {node} gave {min(twice)} to more than one pod" if twice else ""


def _uuids(choices: Sequence[_Choice], *, known: bool) -> list[str]:
    return [uuid for choice in choices if choice.known is known for uuid in choice.gets]


def _move_guesses(choices: Sequence[_Choice], devices: Mapping[str, Device], strangers: frozenset[str]) -> None:
    """Pods of which the record does not speak yet take what is left."""
    taken = {*_uuids(choices, known=True), *strangers}
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
    ]
    left.sort(key=lambda uuid: not devices[uuid].healthy)
    for choice in guesses:
        missing = len(choice.has) - len(choice.gets)
        choice.gets |= frozenset(left[:missing])
        del left[:missing]
        if len(choice.gets) < len(choice.has):
            choice.gets = (
                choice.has
            )  # nothing is left for it: what it guessed is in other hands, and writing will say so


def _write(node: str, changed: Sequence[_Choice], devices: Mapping[str, Device], now: datetime) -> str:
    """What keeps the ledger from following the record, empty when it did."""
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
            return ""  # the next comparison sees what it is now
        except LostRace as lost:
            if last or not drop_holds(lost.device_ids, now):
                named = ", ".join(_label(choice.row) for choice in changed)
                return f"the kubelet of {node} gave devices to {named} that the ledger gave to others"
        else:
            return ""
    return ""


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
