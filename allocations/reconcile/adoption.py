"""Adoption of running pods without a row in the ledger (DEV-8, DEV-9, DEV-11).

They are adopted by their annotations, by their kubelet's record, or by their env; else they are reported. Called by
`allocations.reconcile.run`. Invariants: a pod that runs holds its devices, so a hold on one of them is dropped;
anything stronger is a conflict, which is reported and never overwritten; a pod that ended meanwhile is not adopted; env
counts only for pods that were there before gpuplane; the devices that a pod without a row holds, or may hold, are
closed to new pods (`allocations.reconcile.closing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import structlog
from django.db import IntegrityError

from allocations import ledger
from allocations.choices import LIVE, State
from allocations.engine.decision import Grant
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.ledger.hold import devices_text
from allocations.models import Allocation, AllocationDevice
from allocations.pod_request import preemption_priority
from allocations.reconcile.report import ACTOR, Difference
from allocations.reconcile.reservation_pods import Reservation, groups_of
from allocations.reconcile.rows import devices_by_node
from claims.admission.confinement import is_confined
from claims.dialects.adopted import AdoptedDevice, Adoption, Unreadable
from claims.dialects.device_names import Names
from claims.dialects.parse import parse_pod
from claims.dialects.read_back import read_allocation
from claims.dialects.read_running import CHECKPOINT, ENV, kubelet_uid, read_checkpoint, read_env
from claims.dialects.registry import READ_BACK, RESULT_SOURCES
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect
from claims.lookup import ClaimFinder, FoundClaim
from claims.membership import membership_of
from kube.device_types import ledger_type, type_order
from kube.keys import ALLOCATED, KAI_GPU_GROUP_LABEL
from kube.objects import Pod
from nodes.checkpoints import CheckpointGrant
from nodes.live.reads import latest_of
from nodes.models import Device

log = structlog.get_logger(__name__)

BATCH = 500
"""Pods looked up in the ledger at once."""


Closed = dict[int, str]
"""Device id → why it is given to nobody new."""
GivenByPod = Mapping[tuple[str, str], Sequence[CheckpointGrant]]
"""(node, the kubelet's UID of the pod) → grants, from `nodes.checkpoints.grants_by_kubelets`."""


_NONE: Final[Mapping[str, Reservation]] = MappingProxyType({})


class Adopted(NamedTuple):
    """New allocations, and pods that were not adopted. `closed`: devices that those hold, or may hold."""

    allocations: tuple[ledger.Live, ...] = ()
    differences: tuple[Difference, ...] = ()
    closed: Mapping[int, str] = MappingProxyType({})


def runs_with_devices(pod: Pod, given: GivenByPod, reservations: Mapping[str, Reservation] = _NONE) -> bool:
    """Whether the pod runs and holds devices by a result annotation of any dialect, a kubelet's record, its env, or the
    label of a group.
    """
    if not pod.spec.node_name or pod.finished:
        return False
    if any(name in reservations for name in groups_of(pod)):
        return True
    known = (pod.spec.node_name, kubelet_uid(pod)) in given
    return known or any(key in pod.annotations for key in RESULT_SOURCES) or read_env(pod) is not None


def adopt_running(
    *,
    pods: Sequence[Pod],
    given: GivenByPod,
    reservations: Mapping[str, Reservation] = _NONE,
    since: datetime,
    now: datetime,
) -> Adopted:
    """Adopt each of these pods that has no live row and did not end after `since`, when the ledger was read."""
    done: list[Adopted] = []
    for start in range(0, len(pods), BATCH):
        some = pods[start : start + BATCH]
        uids = [pod.metadata.uid for pod in some]
        known = Allocation.objects.filter(pod_uid__in=uids)
        passed = set(known.filter(state__in=LIVE).values_list("pod_uid", flat=True))
        passed |= set(known.filter(state=State.RELEASED, ended_at__gte=since).values_list("pod_uid", flat=True))
        devices = devices_by_node({pod.spec.node_name for pod in some})
        unknown = [pod for pod in some if pod.metadata.uid not in passed]
        done += [_adopt(pod, devices[pod.spec.node_name], given, reservations, now) for pod in unknown]
    return Adopted(
        tuple(chain.from_iterable(one.allocations for one in done)),
        tuple(chain.from_iterable(one.differences for one in done)),
        dict(chain.from_iterable(one.closed.items() for one in reversed(done))),  # the first cause of a device stays
    )


def _adopt(
    pod: Pod,
    devices: Sequence[Device],
    given: GivenByPod,
    reservations: Mapping[str, Reservation],
    now: datetime,
) -> Adopted:
    node = pod.spec.node_name
    finder = ClaimFinder()
    parsed = parse_pod(pod, find_claim=finder)
    asked = parsed if isinstance(parsed, DeviceRequest) else None
    names = names_of(node, devices)
    found = by_result = _by_result(pod, asked)
    if found is None or (isinstance(found, Unreadable) and parsed is None and ALLOCATED not in pod.annotations):
        found = _by_groups(pod, asked, reservations) or read_running(pod, devices, given, names)
    if found is None and isinstance(by_result, Unreadable):
        return _not_adopted(pod, f"runs on {node} with devices that cannot be read: {by_result.problem}")
    if found is None:
        if not devices or read_env(pod) is None:
            return Adopted()
        return _not_adopted(pod, f"names GPUs of {node} in its env, which gpuplane did not give it")
    if isinstance(found, Unreadable):
        types = None if asked is None else {ledger_type(ask.type) for ask in asked.asks}
        problem = f"runs on {node} with devices that cannot be read: {found.problem}"
        return _not_adopted(pod, problem, closed=of_types(devices, types))
    if not devices:
        return _not_adopted(pod, f"runs with devices of {node}, which has no inventory yet")
    grants, missing = _grants(found, devices, names)
    if missing is not None:
        problem = f"runs with {missing.uuid or f'{missing.type} {missing.minor}'}, which {found.node} does not have"
        return _not_adopted(pod, problem, closed=of_types(devices, {missing.type}))
    request = msgspec.structs.replace(asked or _request(found), by_kubelet=found.source == CHECKPOINT)
    written = _write(pod, found, grants, request, finder.of(pod, parsed), now)
    if isinstance(written, str):
        return _not_adopted(pod, written, disputed=grants)
    return Adopted(() if written is None else (written,))


def _not_adopted(pod: Pod, problem: str, *, closed: Iterable[int] = (), disputed: Iterable[Grant] = ()) -> Adopted:
    """`closed`: ids of devices that the pod may hold. `disputed`: all that it runs with, none of which was written."""
    meta = pod.metadata
    label = f"{meta.namespace}/{meta.name}"
    difference = Difference(
        f"pod {label} ({meta.uid}) {problem}",
        meta.namespace,
        meta.name,
        pod.spec.node_name,
        disputed=tuple((grant.device_id, label) for grant in disputed),
    )
    return Adopted(differences=(difference,), closed=dict.fromkeys(closed, f"pod {label} {problem}"))


def _by_result(pod: Pod, asked: DeviceRequest | None) -> Adoption | Unreadable | None:
    """The devices by its result annotations. An unguarded result counts only for what the pod asks for."""
    found = read_allocation(pod, request=asked)
    if isinstance(found, Adoption) and not _asked_for(found, asked, pod):
        return Unreadable(f"{found.source} names devices that the pod does not ask for")
    return found


def _by_groups(pod: Pod, asked: DeviceRequest | None, reservations: Mapping[str, Reservation]) -> Adoption | None:
    """The shares of the GPUs of the groups that the pod's labels name, as KAI-Scheduler places pods."""
    groups = [reservations[name] for name in groups_of(pod) if name in reservations]
    if asked is None or len(asked.asks) != 1 or not groups:
        return None
    (ask,) = asked.asks
    shares = tuple(
        AdoptedDevice(
            type=ask.type,
            uuid=uuid,
            core_percent=ask.core_percent,
            memory_bytes=ask.memory_bytes,
            memory_ratio=ask.memory_ratio,
        )
        for group in groups
        if group.node == pod.spec.node_name
        for uuid in group.uuids
    )
    return Adoption(node=pod.spec.node_name, devices=shares, source=KAI_GPU_GROUP_LABEL) if shares else None


def _asked_for(found: Adoption, asked: DeviceRequest | None, pod: Pod) -> bool:
    """Whether the pod asks, in the dialect of the scheduler that wrote the result, for so many devices.

    While a cluster is taken over nobody guards the annotations of other schedulers' pods.
    """
    if found.source not in READ_BACK:
        return True
    _, result = READ_BACK[found.source]
    if asked is None or asked.dialect not in result.written_for:
        return False
    return len(found.devices) <= result.devices_most(pod, asked)


def of_types(devices: Iterable[Device], types: Collection[str] | None) -> frozenset[int]:
    """Ids of the devices of these types, of all for None."""
    return frozenset(device.pk for device in devices if types is None or device.type in types)


def names_of(node: str, devices: Iterable[Device]) -> Names:
    """The devices of a node by all their names; MIG instances by the agent's last details, read where needed."""

    def migs() -> Mapping[str, str]:
        details = latest_of(node)[1]
        if details is None:
            return {}
        by_gpu = zip(details.devices, details.details, strict=True)
        return {mig.uuid: gpu for gpu, one in by_gpu for mig in one.migs}

    return Names(devices, migs=migs)


def read_running(pod: Pod, devices: Sequence[Device], given: GivenByPod, names: Names) -> Adoption | Unreadable | None:
    """The devices of a pod without a result annotation, by the kubelet's record or its env; None where unknown."""
    if not devices:
        return None
    found = read_checkpoint(pod, grants=given.get((pod.spec.node_name, kubelet_uid(pod)), ()), names=names)
    if found is not None:
        return found
    bound = bound_at(pod)
    return read_env(pod) if bound is not None and bound < devices[0].node.registered_at else None


def _write(
    pod: Pod,
    found: Adoption,
    grants: tuple[Grant, ...],
    request: DeviceRequest,
    claim: FoundClaim,
    now: datetime,
) -> ledger.Live | str | None:
    """The new allocation, or why the pod was not adopted; None where it has a row, or has ended, by now."""
    meta = pod.metadata
    terms = ledger.Terms(
        holder=ledger.pod_holder(meta.namespace, meta.name, meta.uid),
        request=request,
        claim_id=claim.claim_id,
        priority=preemption_priority(pod),
        confined=is_confined(pod) or found.source == CHECKPOINT,
        actor=ACTOR,
        membership=membership_of(pod, claim.gang),
    )
    adopt = partial(ledger.adopt, terms, node=found.node, grants=grants, now=now, bound_at=bound_at(pod))
    try:
        try:
            return ledger.read_live(adopt())
        except LostRace as lost:
            if not drop_holds(lost.device_ids, now):
                raise
            return ledger.read_live(adopt())
    except (PodHasOne, MovedOn) as error:
        log.info("reconcile.adopted_elsewhere", pod=meta.name, why=str(error))
        return None
    except IntegrityError as error:
        log.exception("reconcile.not_adopted", pod=meta.name)
        return f"runs with devices that could not be written down: {error}"
    except LostRace:
        return f"runs with {devices_text(grants)} of {found.node}, which the ledger gave to others"


def drop_holds(device_ids: tuple[int, ...], now: datetime) -> int:
    """Drop the holds on these devices, which a running pod has; how many."""
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
    if wanted.core_percent is None:
        return whole_grant(device)
    memory = wanted.memory_bytes
    if memory is None:
        memory = device.memory_bytes * (wanted.memory_ratio or 0) // 100
    return msgspec.structs.replace(
        whole_grant(device),
        core_percent=wanted.core_percent,
        memory_bytes=memory if device.memory_bytes else None,
        whole=wanted.whole,
    )


def whole_grant(device: Device) -> Grant:
    """The grant of the whole device."""
    return Grant(
        device_id=device.pk,
        uuid=device.uuid,
        type=device.type,
        minor=device.minor,
        core_percent=CORE_WHOLE,
        memory_bytes=device.memory_bytes or None,
        whole=True,
    )


def _request(found: Adoption) -> DeviceRequest:
    """A request for the devices found, where the pod's own cannot be read."""
    counts = Counter(one.type for one in found.devices)
    firsts = {one.type: one for one in reversed(found.devices)}
    asks = tuple(
        DeviceAsk(kind, counts[kind], firsts[kind].core_percent, firsts[kind].memory_bytes, firsts[kind].memory_ratio)
        for kind in sorted(counts, key=type_order)
    )
    return DeviceRequest(asks=asks, dialect=_dialect(found.source))


def _dialect(source: str) -> str:
    if source in READ_BACK:
        return READ_BACK[source][0]
    return Dialect.NATIVE if source in (CHECKPOINT, ENV) else Dialect.GPUCLAIM


def bound_at(pod: Pod) -> datetime | None:
    """When the pod was bound by its conditions, None where they do not say."""
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
