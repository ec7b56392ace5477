"""Running pods without a row in the ledger: adopted by their annotations, by what a kubelet gave them, or by their env; else reported (DESIGN §3,
Adoption; DEV-8, DEV-9, DEV-11).

Called by `allocations.reconcile.run`. Kept true: a pod that runs holds its devices, so a mere hold on one of them gives
way; anything stronger is a conflict, which is reported and never overwritten; a pod that ended meanwhile is
not adopted; what a user wrote into env counts only for pods that were there before gpuplane; of a pod that runs with devices and gets no row,
whatever it holds, or may hold, is closed to newcomers (`allocations.reconcile.closing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import structlog
from django.db import IntegrityError

from allocations import ledger
from allocations.asking import noted_priority
from allocations.choices import LIVE, State
from allocations.engine.decision import Grant
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.ledger.hold import devices_text
from allocations.models import Allocation, AllocationDevice
from allocations.reconcile.report import ACTOR, Difference
from claims.admission.confinement import is_confined
from claims.dialects import Adoption, Unreadable, asks_for_devices, parse_pod, read_allocation
from claims.dialects.device_names import Names
from claims.dialects.hami import gpus_asked
from claims.dialects.read_back import AdoptedDevice
from claims.dialects.read_running import CHECKPOINT, ENV, kubelet_uid, read_env, read_given
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from claims.dialects.steps import containers_of
from claims.lookup import ClaimFinder
from kube.device_types import GPU, ledger_type
from kube.keys import ALLOCATED, HAMI_ALLOCATED, KOORDINATOR_ALLOCATED
from kube.objects import Pod
from nodes.checkpoints import Given
from nodes.choices import Presence
from nodes.live.asked import told_of
from nodes.models import Device, Node

log = structlog.get_logger(__name__)

CHECKPOINT_WITHIN = timedelta(seconds=60)
"""An agent sends the kubelet's record right after the inventory; no node is kept waiting longer for it."""
BATCH = 500
"""Pods looked up in the ledger at once."""
RESULTS = (ALLOCATED, KOORDINATOR_ALLOCATED, HAMI_ALLOCATED)


Closed = dict[int, str]
"""Device id → why it is given to nobody new."""
GivenByPod = Mapping[tuple[str, str], Sequence[Given]]
"""What kubelets gave away, by node and the UID under which they know the pod: `nodes.checkpoints.given_by_kubelets`."""


@dataclass(slots=True)
class Adopted:
    """Ids of new allocations, and what could not be adopted. `closed`: what those pods hold, or may hold."""

    allocations: list[ledger.Live] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    closed: Closed = field(default_factory=dict)


def runs_with_devices(pod: Pod, given: GivenByPod) -> bool:
    """Whether the pod is on a node, has not finished, and holds devices by a result annotation of any dialect, a kubelet's record or its env."""
    if not pod.spec.node_name or pod.finished:
        return False
    known = (pod.spec.node_name, kubelet_uid(pod)) in given
    return known or any(key in pod.annotations for key in RESULTS) or read_env(pod) is not None


def ran_past(*, pods: Iterable[Pod], known: Collection[str]) -> list[Difference]:
    """Pods that run on a node with devices, ask for some and were given none: bound past gpuplane while its webhooks were away, say.

    `known`: UIDs of pods that had a row before the pods were listed. A Binding of ours carries its result, so none of ours is among them.
    """
    suspects = without_devices(pods, known)
    if not suspects:
        return []
    there = Device.objects.exclude(presence=Presence.REMOVED).filter(
        node__name__in={pod.spec.node_name for pod in suspects}
    )
    ours = set(there.values_list("node__name", flat=True))
    return [
        Difference(
            f"pod {pod.metadata.namespace}/{pod.metadata.name} ({pod.metadata.uid}) asks for devices and runs on "
            f"{pod.spec.node_name}, where gpuplane gave it none",
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=pod.spec.node_name,
        )
        for pod in suspects
        if pod.spec.node_name in ours
    ]


def awaiting_checkpoint(*, pods: Iterable[Pod], known: Collection[str], now: datetime) -> set[str]:
    """New nodes where pods run with devices of which nobody has told yet: their kubelet's record may come any moment.

    `known`: as for `ran_past`.
    """
    names = {pod.spec.node_name for pod in without_devices(pods, known)}
    if not names:
        return set()
    young = Node.objects.filter(name__in=names, registered_at__gt=now - CHECKPOINT_WITHIN, checkpoint__isnull=True)
    return set(young.values_list("name", flat=True))


def without_devices(pods: Iterable[Pod], known: Collection[str]) -> list[Pod]:
    """Those that run, ask for devices, and have neither a row nor a result."""
    return [
        pod
        for pod in pods
        if pod.spec.node_name
        and not pod.finished
        and pod.metadata.uid not in known
        and not any(key in pod.annotations for key in RESULTS)
        and asks_for_devices(pod)
    ]


def adopt_running(*, pods: Sequence[Pod], given: GivenByPod, since: datetime, now: datetime) -> Adopted:
    """Adopt each of these pods that has no live row, and none that ended after `since` (when the ledger was read)."""
    done = Adopted()
    for start in range(0, len(pods), BATCH):
        some = pods[start : start + BATCH]
        uids = [pod.metadata.uid for pod in some]
        known = Allocation.objects.filter(pod_uid__in=uids)
        passed = set(known.filter(state__in=LIVE).values_list("pod_uid", flat=True))
        passed |= set(known.filter(state=State.RELEASED, ended_at__gte=since).values_list("pod_uid", flat=True))
        fleet = _devices_of({pod.spec.node_name for pod in some})
        for pod in some:
            if pod.metadata.uid not in passed:
                _adopt(pod, fleet[pod.spec.node_name], given, done, now)
    return done


def _devices_of(nodes: Iterable[str]) -> dict[str, list[Device]]:
    found: dict[str, list[Device]] = {name: [] for name in nodes}
    rows = (
        Device.objects.filter(node__name__in=found)
        .exclude(presence=Presence.REMOVED)
        .select_related("node")
        .defer("node__links", "node__disputed")
    )
    for device in rows:
        found[device.node.name].append(device)
    return found


def _adopt(pod: Pod, devices: Sequence[Device], given: GivenByPod, done: Adopted, now: datetime) -> None:
    meta = pod.metadata
    finder = ClaimFinder()
    parsed = parse_pod(pod, find_claim=finder)
    asked = parsed if isinstance(parsed, DeviceRequest) else None
    names = names_of(pod.spec.node_name, devices)
    found = _by_result(pod, asked)
    noted = found  # what is wrong with a result that counts for nothing is said where nothing else is known
    if found is None or (isinstance(found, Unreadable) and parsed is None and ALLOCATED not in pod.annotations):
        found = read_running(pod, devices, given, names)
    problem, holds, disputed = "", frozenset[int](), False
    if found is None and isinstance(noted, Unreadable):
        problem = f"runs on {pod.spec.node_name} with devices that cannot be read: {noted.problem}"
    elif found is None:
        if not devices or read_env(pod) is None:
            return
        problem = f"names GPUs of {pod.spec.node_name} in its env, which gpuplane did not give it"
    elif isinstance(found, Unreadable):
        problem = f"runs on {pod.spec.node_name} with devices that cannot be read: {found.problem}"
        holds = of_types(devices, _types(asked))
    elif not devices:
        problem = f"runs with devices of {pod.spec.node_name}, which has no inventory yet"
    else:
        grants, missing = _grants(found, devices, names)
        if missing is not None:
            problem = f"runs with {missing.uuid or f'{missing.type} {missing.minor}'}, which {found.node} does not have"
            holds = of_types(devices, {missing.type})
        else:
            request = msgspec.structs.replace(asked or _request(found), by_kubelet=found.source == CHECKPOINT)
            problem = _write(pod, found, grants, request, finder.claim_id, done, now)
            disputed = bool(problem)
    if problem:
        told, label = f"pod {meta.namespace}/{meta.name} ({meta.uid}) {problem}", f"{meta.namespace}/{meta.name}"
        # All of them, those that nobody else has too: the ledger could write none of them down.
        runs_with = tuple((grant.device_id, label) for grant in grants) if disputed else ()
        done.differences.append(
            Difference(told, namespace=meta.namespace, name=meta.name, node=pod.spec.node_name, disputed=runs_with)
        )
        for pk in holds:
            done.closed.setdefault(pk, f"pod {label} {problem}")


def _by_result(pod: Pod, asked: DeviceRequest | None) -> Adoption | Unreadable | None:
    """What its result annotations say. Of a result that is not guarded only what the pod asks for is believed."""
    found = read_allocation(pod, request=asked)
    if isinstance(found, Adoption) and not _asked_for(found, asked, pod):
        return Unreadable(f"{found.source} names devices that the pod does not ask for")
    return found


def _asked_for(found: Adoption, asked: DeviceRequest | None, pod: Pod) -> bool:
    """Whether another scheduler's result is of a pod that asks in that scheduler's words for so many devices.

    HAMi plans each container by itself: one that runs before another may have had other devices than that one.

    While a cluster is taken over nobody guards those annotations for others' pods: whoever asks for nothing holds nothing by them.
    """
    words = _WORDS.get(found.source)
    if words is None:
        return True
    if asked is None or asked.dialect not in words:
        return False
    if found.source == HAMI_ALLOCATED:
        return len(found.devices) <= sum(gpus_asked(container) for container in containers_of(pod))
    return len(found.devices) <= asked.devices_most


def _types(asked: DeviceRequest | None) -> set[str] | None:
    """Types of the devices that the pod asks for, None where that cannot be told."""
    return None if asked is None else {ledger_type(ask.type) for ask in asked.asks}


def of_types(devices: Iterable[Device], types: Collection[str] | None) -> frozenset[int]:
    """Ids of those of the devices that are of one of the types; of all where that is not known."""
    return frozenset(device.pk for device in devices if types is None or device.type in types)


def names_of(node: str, devices: Iterable[Device]) -> Names:
    """The devices of a node by whatever they are called; what its agent said last of MIG instances is asked for where it is needed."""

    def migs() -> Mapping[str, str]:
        details = told_of(node)[1]
        if details is None:
            return {}
        told = zip(details.devices, details.details, strict=True)
        return {mig.uuid: gpu for gpu, one in told for mig in one.migs}

    return Names(devices, migs=migs)


def read_running(pod: Pod, devices: Sequence[Device], given: GivenByPod, names: Names) -> Adoption | Unreadable | None:
    """What a pod without a result annotation runs with on a node of ours, None for nothing that is known."""
    if not devices:
        return None
    found = read_given(pod, given=given.get((pod.spec.node_name, kubelet_uid(pod)), ()), known=names)
    if found is not None:
        return found
    bound = bound_at(pod)
    return read_env(pod) if bound is not None and bound < devices[0].node.registered_at else None


def _write(
    pod: Pod,
    found: Adoption,
    grants: tuple[Grant, ...],
    request: DeviceRequest,
    claim_id: int | None,
    done: Adopted,
    now: datetime,
) -> str:
    """What keeps the pod from being adopted, empty when it was (or has a row by now)."""
    meta = pod.metadata
    for last in (False, True):
        try:
            allocation_id = ledger.adopt(
                holder=ledger.pod_holder(meta.namespace, meta.name, meta.uid),
                node=found.node,
                grants=grants,
                request=request,
                claim_id=claim_id,
                now=now,
                bound_at=bound_at(pod),
                priority=noted_priority(pod),
                confined=is_confined(pod) or found.source == CHECKPOINT,
                actor=ACTOR,
            )
        except (PodHasOne, MovedOn) as error:
            log.info("reconcile.adopted_elsewhere", pod=meta.name, why=str(error))
            return ""
        except IntegrityError as error:
            log.exception("reconcile.not_adopted", pod=meta.name)
            return f"runs with devices that could not be written down: {error}"
        except LostRace as lost:
            if last or not drop_holds(lost.device_ids, now):
                break
        else:
            live = ledger.read_live(allocation_id)
            if live is not None:
                done.allocations.append(live)
            return ""
    named = devices_text(grants)
    return f"runs with {named} of {found.node}, which the ledger gave to others"


def drop_holds(device_ids: tuple[int, ...], now: datetime) -> int:
    """Pods that are not bound yet give way to one that runs."""
    held = AllocationDevice.objects.filter(device__in=device_ids, live=True, allocation__state=State.HELD)
    return sum(
        ledger.drop_hold(
            allocation_id=allocation_id,
            outcome=State.FAILED,
            reason="a running pod has the device",
            now=now,
            actor=ACTOR,
        )
        for allocation_id in set(held.values_list("allocation_id", flat=True))
    )


def _grants(found: Adoption, devices: Sequence[Device], names: Names) -> tuple[tuple[Grant, ...], AdoptedDevice | None]:
    """(grants, the first device that the node does not have)."""
    by_minor = {(device.type, device.minor): device for device in devices}
    by_uuid = {device.uuid: device for device in devices}
    grants: dict[int, Grant] = {}
    for wanted in found.devices:
        if wanted.minor is None:
            device = by_uuid.get(names.find(wanted.uuid, env=found.source == ENV) or "")
        else:
            device = by_minor.get((wanted.type, wanted.minor))
        if device is None:
            return (), wanted
        grants.setdefault(device.pk, _grant(wanted, device))  # named twice, by minor and by UUID say, it is one
    return tuple(grants.values()), None


def _grant(wanted: AdoptedDevice, device: Device) -> Grant:
    core, total = wanted.core_percent, device.memory_bytes
    if core is None:
        core, memory = 100, total
    elif wanted.memory_bytes is not None:
        memory = wanted.memory_bytes
    else:
        memory = total * (wanted.memory_ratio or 0) // 100
    return Grant(
        device_id=device.pk,
        uuid=device.uuid,
        type=device.type,
        minor=device.minor,
        core_percent=core,
        memory_bytes=memory if total else None,
        whole=wanted.whole,
    )


_WORDS = {
    KOORDINATOR_ALLOCATED: frozenset({Dialect.KOORDINATOR, Dialect.NATIVE}),
    HAMI_ALLOCATED: frozenset({Dialect.HAMI, Dialect.NATIVE}),
}
"""Annotations that others than gpuplane write → the dialects of pods on which they do."""
_DIALECTS = {
    KOORDINATOR_ALLOCATED: Dialect.KOORDINATOR,
    HAMI_ALLOCATED: Dialect.HAMI,
    CHECKPOINT: Dialect.NATIVE,
    ENV: Dialect.NATIVE,
}


def _request(found: Adoption) -> DeviceRequest:
    """What the pod must have asked for, where its own words cannot be read any more."""
    counted = Counter(
        DeviceAsk(one.type, 1, one.core_percent, one.memory_bytes, one.memory_ratio) for one in found.devices
    )
    first: dict[str, DeviceAsk] = {}
    for ask in counted:
        number = sum(count for other, count in counted.items() if other.type == ask.type)
        first.setdefault(ask.type, DeviceAsk(ask.type, number, ask.core_percent, ask.memory_bytes, ask.memory_ratio))
    asks = tuple(sorted(first.values(), key=lambda ask: (ask.type != GPU, ask.type)))
    return DeviceRequest(asks=asks, dialect=_DIALECTS.get(found.source, Dialect.GPUCLAIM))


def bound_at(pod: Pod) -> datetime | None:
    """When the pod was bound, as its conditions tell; None where they do not."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "True":
            return moment_of(condition.last_transition_time)
    return None


def moment_of(text: str | None) -> datetime | None:
    """A metav1.Time, None where there is none or it cannot be read."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
