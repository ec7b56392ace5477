"""The steps of reservation pods in binds and releases.

A bind: join → make the pods → note them → wait for their reports → move to the reported GPUs → give way to leases. A
release: end the groups that nobody has → delete their pods → note that they are gone. Called by `scheduling.binder`.
Steps of the ledger take a list of attempts, requests are coroutines for one attempt; each may be repeated.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog
from django.conf import settings

from allocations.choices import GroupState
from allocations.counters import RESERVATION_SECONDS, ReservationFailure, reservation_failed
from allocations.errors import MovedOn
from allocations.leases.kubernetes import KubernetesLeases
from allocations.leases.port import Want, lease_name
from allocations.ledger.group_devices import GroupOutcome, PlacedGroup, place_group
from allocations.ledger.group_joining import join_groups
from allocations.ledger.groups import (
    Group,
    end_groups,
    fail_group,
    note_pods,
    release_unused,
)
from allocations.scheduling import limits
from allocations.scheduling.attempt import DONE, WAIT_AGAIN, Attempt, StepOutcome
from allocations.scheduling.reservation_pods.pod_watch import PodReport, reservation_watch
from kube import reservation_pods
from kube.client import Cluster
from kube.device_types import GPU
from kube.errors import KubeError, PermanentKubeError, TemporaryKubeError
from kube.reservation_pod import reservation_pod

PAUSE_SECONDS: Final = 0.2
"""Before a group that another bind is in the way of is placed again."""

log = structlog.get_logger(__name__)


def needed(attempt: Attempt) -> bool:
    """Whether reservation pods keep the attempt's GPUs."""
    return attempt.live.by_reservation_pods and attempt.backends.cluster is not None and not attempt.bound


def unready(attempt: Attempt) -> bool:
    """Whether a reservation pod of the attempt has not reported its GPUs."""
    return needed(attempt) and any(group.state is not GroupState.READY for group in attempt.groups)


def releasable(attempt: Attempt) -> bool:
    """Whether the attempt had groups, which may have lost their last holder."""
    return bool(attempt.live.groups or attempt.groups) and attempt.backends.cluster is not None


def join(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Join the groups of the attempts' GPUs, or begin them, all in one transaction."""
    namespace = settings.GPUPLANE_RESERVATION_NAMESPACE
    joined = join_groups(
        [one.live.id for one in attempts], pod_namespace=namespace, now=attempts[0].now, actor=attempts[0].actor
    )
    outcomes = []
    for one in attempts:
        groups = joined.get(one.live.id)
        one.reports = {}
        if groups is None:
            outcomes.append(StepOutcome.failed("the reservation pod of the GPU takes nobody new"))
        else:
            one.groups = groups
            outcomes.append(_read_again(one))
    return outcomes


def _read_again(attempt: Attempt) -> StepOutcome:
    """The devices may have moved. Others of the batch go on where this reservation has gone."""
    try:
        attempt.read_again()
    except MovedOn as error:
        return StepOutcome.open(error)
    return DONE


def wanted(attempt: Attempt) -> bool:
    """Whether a group of the attempt may have no reservation pod yet."""
    return needed(attempt) and bool(_wanted(attempt))


async def make(attempt: Attempt) -> StepOutcome:
    """Make the pods of the groups that have none yet."""
    cluster = attempt.backends.cluster
    assert cluster is not None
    groups = _wanted(attempt)
    try:
        made = await asyncio.gather(
            *(reservation_pods.create(cluster, manifest_of(group), timeout=limits.REQUEST_SECONDS) for group in groups)
        )
    except PermanentKubeError as error:
        refused = PodReport(
            failure=f"the API server refused the reservation pod: {error}", kind=ReservationFailure.REFUSED
        )
        attempt.reports |= dict.fromkeys(groups, refused)
        return DONE
    except TemporaryKubeError as error:
        return StepOutcome.open(f"the API server does not answer: {error}")
    attempt.pod_uids = {group: pod.uid for group, pod in zip(groups, made, strict=True)}
    return DONE


def _wanted(attempt: Attempt) -> list[Group]:
    return [group for group in attempt.groups if group.state is GroupState.WANTED]


def _unready(attempt: Attempt) -> list[Group]:
    return [group for group in attempt.groups if group.state is not GroupState.READY]


def manifest_of(group: Group) -> dict[str, object]:
    """The reservation pod of a group."""
    return reservation_pod(
        namespace=group.pod_namespace,
        name=group.pod_name,
        node=group.node,
        group=group.name,
        gpus=group.gpus,
        image=settings.GPUPLANE_RESERVATION_IMAGE,
        runtime_class=settings.GPUPLANE_RESERVATION_RUNTIME_CLASS,
        priority_class=settings.GPUPLANE_RESERVATION_PRIORITY_CLASS,
        pull_secrets=settings.GPUPLANE_RESERVATION_PULL_SECRETS,
        tolerations=settings.GPUPLANE_RESERVATION_TOLERATIONS,
    )


def note(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Note the pods that were made, so that they are found by their groups whatever becomes of this process."""
    pods = {group.id: uid for one in attempts for group, uid in one.pod_uids.items()}
    if pods:
        note_pods(pods, now=attempts[0].now, actor=attempts[0].actor)
    return [DONE] * len(attempts)


async def wait(attempt: Attempt) -> StepOutcome:
    """Wait for what the pods say, up to GPUPLANE_RESERVATION_SECONDS from when each was made."""
    cluster = attempt.backends.cluster
    assert cluster is not None
    if attempt.busy:
        attempt.busy = False
        await cluster.apause(PAUSE_SECONDS)
    watch = reservation_watch(cluster, settings.GPUPLANE_RESERVATION_NAMESPACE)

    async def hear(group: Group) -> None:
        most = settings.GPUPLANE_RESERVATION_SECONDS
        since = group.started_at or (group.created_at if attempt.collecting else attempt.clock.read_at)
        seconds = max(most - (attempt.now - since).total_seconds(), 0.0)
        report = await watch.wait(name=group.pod_name, uid=attempt.pod_uids.get(group, group.pod_uid), seconds=seconds)
        attempt.reports[group] = report or PodReport(
            failure=f"the reservation pod reported no GPU within {most} s", kind=ReservationFailure.TIMED_OUT
        )

    try:
        await asyncio.gather(*(hear(group) for group in _unready(attempt) if group not in attempt.reports))
    except KubeError as error:
        return StepOutcome.open(f"the API server does not say what became of the reservation pod: {error}")
    return DONE


def place(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Move the groups to the GPUs that were reported; those without any fail, with all who share them."""
    known: dict[tuple[uuid.UUID, str], PlacedGroup] = {}
    return [_place(one, known) for one in attempts]


def _place(attempt: Attempt, known: dict[tuple[uuid.UUID, str], PlacedGroup]) -> StepOutcome:
    """`known`: what became of groups and their pods in this batch, for those who share them."""
    for group in _unready(attempt):
        report = attempt.reports[group]
        pod_uid = attempt.pod_uids.get(group, group.pod_uid)
        placed = known.get((group.id, pod_uid))
        if placed is None and not report.failure:
            placed = place_group(group.id, pod_uid=pod_uid, uuids=report.uuids, now=attempt.now, actor=attempt.actor)
            if placed.outcome is GroupOutcome.READY:
                known[group.id, pod_uid] = placed
                if placed.seconds is not None:
                    RESERVATION_SECONDS.observe(placed.seconds)
        if placed is not None and placed.outcome is GroupOutcome.BUSY and not attempt.out_of_time:
            attempt.busy = True
            return WAIT_AGAIN
        if placed is None or placed.outcome in (GroupOutcome.REFUSED, GroupOutcome.BUSY):
            reason = report.failure or (placed.reason if placed else "") or "a pod in the way was never bound"
            if fail_group(group.id, reason, now=attempt.now, actor=attempt.actor):
                reservation_failed(report.kind if report.failure else ReservationFailure.OTHER_GPU)
            return StepOutcome.failed(f"no GPU of {group.node} could be reserved: {reason}")
        if placed.outcome is GroupOutcome.MOVED_ON:
            return StepOutcome.failed(f"the reservation of a GPU of {group.node} failed for others who share it")
        attempt.left += [
            (lease.holder.identity, Want(lease_name(GPU, lease.node, lease.minor), lease.node, lease.uuid, whole=True))
            for lease in placed.left
        ]
    attempt.groups = tuple(replace(group, state=GroupState.READY) for group in attempt.groups)
    return _read_again(attempt)


def has_left(attempt: Attempt) -> bool:
    """Whether others have leases of GPUs that turned out to be the attempt's."""
    return bool(attempt.left)


async def give_way(attempt: Attempt) -> StepOutcome:
    """Drop leases of pods of the kubelet's choice whose guess was moved; a comparison takes their new ones."""
    leases = attempt.backends.leases
    assert isinstance(leases, KubernetesLeases)
    try:
        for identity, want in attempt.left:
            await leases.adrop([want], identity)
    except KubeError as error:
        return StepOutcome.open(f"the API server does not answer: {error}")
    attempt.left = []
    return DONE


def end_unused(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """End the groups that nobody has any more."""
    for one in attempts:
        names = {*one.live.groups, *(group.name for group in one.groups)}
        one.ended = tuple(release_unused(names, spare=settings.GPUPLANE_SPARE_GROUPS, now=one.now, actor=one.actor))
    return [DONE] * len(attempts)


def has_ended(attempt: Attempt) -> bool:
    """Whether groups of the attempt are being released."""
    return bool(attempt.ended)


async def delete(attempt: Attempt) -> StepOutcome:
    """Delete the pods of groups that are being released. What fails is done later (`settle`)."""
    cluster = attempt.backends.cluster
    assert cluster is not None
    gone = []
    for group in attempt.ended:
        try:
            if await delete_pod(cluster, group):
                gone.append(group)
        except KubeError as error:
            log.info("reservation_pods.not_deleted", group=group.name, error=str(error))
    attempt.ended = tuple(gone)
    return DONE


async def delete_pod(cluster: Cluster, group: Group, *, uid: str = "") -> bool:
    """Delete the group's pod, or only the one with this UID; whether none is there. Raises KubeError."""
    place = {"namespace": group.pod_namespace, "name": group.pod_name}
    pod = await reservation_pods.find(cluster, **place, timeout=limits.REQUEST_SECONDS)
    if pod is None or not pod.is_for(node=group.node, group=group.name):
        return True
    if uid and pod.uid != uid:
        return False
    await reservation_pods.delete(cluster, **place, uid=pod.uid, timeout=limits.REQUEST_SECONDS)
    return await reservation_pods.find(cluster, **place, timeout=limits.REQUEST_SECONDS) is None


def end(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Releasing → gone, for groups whose pod is gone: their GPUs are free again."""
    groups = [group.id for one in attempts for group in one.ended]
    if groups:
        end_groups(groups, now=attempts[0].now, actor=attempts[0].actor)
    return [DONE] * len(attempts)
