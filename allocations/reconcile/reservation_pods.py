"""Reservation pods in a comparison: told from pods that hold devices, and groups read back from them (LEASE-6).

Called by `allocations.reconcile.run`. After a reinstallation, or a takeover from KAI-Scheduler, reservation pods run
whose groups the ledger does not know. Invariants: a group is adopted only with GPUs that its node has and that nobody
but its sharers holds; adoption changes no pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from django.conf import settings

from allocations.choices import GROUP_LIVE, GroupState
from allocations.ledger.group_reads import lock_gpus
from allocations.ledger.groups import insert_groups, write_groups
from allocations.models import AllocationDevice, GpuGroup
from allocations.reconcile.report import ACTOR, Difference
from kube.keys import KAI_GPU_GROUP_LABEL, KAI_RESERVATION
from kube.objects import Pod
from kube.reservation_pods import reported_uuids
from nodes.choices import Presence
from nodes.models import Device
from storage.transactions import atomic_retry

KAI_NAMESPACES: Final = frozenset({"runai-reservation", "kai-resource-reservation"})
"""Where KAI-Scheduler's own reservation pods are, by its versions."""


class Reservation(NamedTuple):
    """A running reservation pod that has reported its GPUs."""

    group: str
    node: str
    uuids: tuple[str, ...]
    pod: Pod


def is_reservation(pod: Pod) -> bool:
    """Whether the pod is a reservation pod, ours or KAI's: it holds GPUs for others."""
    namespaces = KAI_NAMESPACES | {settings.GPUPLANE_RESERVATION_NAMESPACE}
    return pod.metadata.namespace in namespaces and KAI_GPU_GROUP_LABEL in pod.labels


def groups_of(pod: Pod) -> tuple[str, ...]:
    """The groups that the pod's labels name, sorted."""
    names = {
        value
        for key, value in pod.labels.items()
        if key == KAI_GPU_GROUP_LABEL or key.startswith(f"{KAI_GPU_GROUP_LABEL}/")
    }
    return tuple(sorted(names))


def reservations_of(pods: Iterable[Pod]) -> dict[str, Reservation]:
    """Group → its reservation pod, of those that run and have reported their GPUs."""
    found = {}
    for pod in pods:
        uuids = reported_uuids(pod.annotations.get(KAI_RESERVATION, ""))
        if uuids and pod.spec.node_name and not pod.finished and not pod.metadata.deletion_timestamp:
            group = pod.labels[KAI_GPU_GROUP_LABEL]
            found[group] = Reservation(group, pod.spec.node_name, uuids, pod)
    return found


def adopt_groups(
    reservations: Mapping[str, Reservation], *, shared: Collection[str], now: datetime
) -> tuple[list[str], list[Difference]]:
    """Adopt those without a group whose GPUs have holders by now: (a line each, what could not be adopted).

    `shared`: the groups that running pods name. Others are left to whoever deletes pods without a group.
    """
    known = set(GpuGroup.objects.filter(state__in=GROUP_LIVE).values_list("name", flat=True))
    lines, differences = [], []
    for name, reservation in sorted(reservations.items()):
        if name in known or name not in shared:
            continue
        problem = _adopt(reservation, now)
        if problem is None:
            lines.append(f"adopted the reservation pod of group {name} on {reservation.node}")
        elif problem:
            message = f"reservation pod {reservation.pod.metadata.name} of group {name} {problem}"
            differences.append(Difference(message, node=reservation.node))
    return lines, differences


@atomic_retry
def _adopt(reservation: Reservation, now: datetime) -> str | None:
    """None where it was adopted, else why not; an empty text where it is too early to say."""
    here = Device.objects.filter(node__name=reservation.node).exclude(presence=Presence.REMOVED)
    node_id = here.values_list("node_id", flat=True).first()
    if node_id is None:
        return ""  # no inventory yet
    mine = [device for device in lock_gpus([node_id]).values() if device.uuid in reservation.uuids]
    if len(mine) < len(reservation.uuids):
        return f"has GPUs that {reservation.node} does not"
    if any(device.gpu_group for device in mine):
        return "has GPUs of another group"
    grants = AllocationDevice.objects.filter(device__in=[device.pk for device in mine], live=True)
    whole = set(grants.values_list("whole", flat=True))
    if not whole:
        return ""  # its sharers are not adopted yet
    if len(whole) > 1 or (whole == {False} and len(mine) > 1):
        return "has GPUs that are held otherwise than its group says"
    meta = reservation.pod.metadata
    row = GpuGroup(
        name=reservation.group,
        node_id=node_id,
        state=GroupState.READY,
        gpus=len(mine),
        shared=whole == {False},
        uuids=sorted(reservation.uuids),
        pod_namespace=meta.namespace,
        pod_name=meta.name,
        pod_uid=meta.uid,
        started_at=now,
        ready_at=now,
    )
    insert_groups([row], now=now, actor=ACTOR)
    for device in mine:
        device.gpu_group, device.gpu_group_open = row.name, True
    write_groups(mine)
    return None
