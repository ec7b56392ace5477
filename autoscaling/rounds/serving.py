"""Follows new nodes from Ready until their devices can be allocated: deletes the trigger pod, protects the node from
disruption by Karpenter, and reserves its devices for the pods that it was made for.

Invariants: the trigger pod is deleted as soon as the node is ready; the protection ends when the first pod is bound,
or `KEPT` after the inventory; a node counts as coming until its devices can be allocated, so no pod is planned twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import structlog
from django.conf import settings
from django.db import transaction

from allocations import fleet
from allocations.choices import LIVE
from allocations.engine.plan import plan
from allocations.engine.queueing.equal_pods import taken
from allocations.engine.snapshot import Snapshot, Withheld
from allocations.ledger.device_reservations import keep
from allocations.ledger.reads import request_of
from allocations.models import Allocation, AllocationDevice, PodRefusal, QueueReservation
from allocations.pod_request import share_policy
from audit.requeue_notify import announce
from autoscaling import shapes
from autoscaling.choices import Step, TriggerState
from autoscaling.counters import OUTCOMES, PROVISION, SERVED
from autoscaling.models import NodeClaim, Pool, Trigger
from autoscaling.rounds.trigger_pods import IN_USE, delete
from autoscaling.rounds.trigger_transitions import fail, move
from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.errors import NotFoundInCluster, PermanentKubeError
from kube.karpenter import DO_NOT_DISRUPT
from kube.node_rules import NO_EXECUTE, NO_SCHEDULE, NodeTraits
from kube.objects import Pod, Taint
from kube.resources import NODES
from nodes.choices import Presence
from nodes.models import Device, Node
from storage.transactions import atomic_retry

KEPT: Final = timedelta(seconds=60)

log = structlog.get_logger(__name__)


def is_usable(node: NodeTraits, pool: Pool | None, snapshot: Snapshot) -> bool:
    """Whether devices of a new node can be allocated: it is ready, none of its devices is closed (a trigger pod that is
    still there may close some), and it has only the taints of its pool. A usable node no longer counts as coming.
    """
    at = snapshot.node_index.get(node.name)
    if at is None or snapshot.node_problem[at] or node.unschedulable:
        return False
    own = {(one["key"], one["effect"]) for one in (pool.taints if pool is not None else [])}
    closing = {(one.key, one.effect) for one in node.taints if one.effect in (NO_SCHEDULE, NO_EXECUTE)}
    kept = snapshot.device_kept[snapshot.rows_of_node(at)]
    return closing <= own and bool(kept.size) and not (kept == Withheld.CLOSED).any()


def _traits(node: Node) -> NodeTraits:
    taints = msgspec.convert(node.taints or [], list[Taint])
    return NodeTraits(node.name, node.labels, taints, node.unschedulable)


class Serving:
    """Nodes that are ready."""

    def __init__(self, cluster: Cluster, now: datetime) -> None:
        self.cluster = cluster
        self.now = now

    def ready(self, trigger: Trigger, claim: NodeClaim, node: kube_nodes.Node, pod: Pod | None) -> None:
        """The node is ready: keep it, then take the trigger pod away."""
        meta: dict[str, object] = {"labels": IN_USE}
        if trigger.pods:
            meta["annotations"] = {DO_NOT_DISRUPT: "true"}
        if trigger.pods:  # first: what is protected is looked at until its protection has ended
            NodeClaim.objects.filter(pk=claim.pk).update(protected=True)
        try:
            self.cluster.patch(NODES.path(name=node.name), {"metadata": meta}, kube_nodes.Node)
        except NotFoundInCluster:
            return  # it went in this moment: the NodeClaim will tell
        if pod is not None:
            delete(self.cluster, pod)
        move(trigger, TriggerState.READY, now=self.now, node=node.name, ready_at=self.now)

    def follow(self, trigger: Trigger, claim: NodeClaim | None) -> None:
        """A node that is ready, and may have told what it has."""
        node = Node.objects.filter(name=trigger.node).first()
        pool = Pool.objects.filter(name=trigger.request.pool).first()
        if node is not None and node.cluster_uid and is_usable(_traits(node), pool, fleet.current().snapshot):
            self._serve(trigger, node, claim)
            return
        if claim is None or claim.deleted_at is not None:
            self._fail(trigger, f"node {trigger.node} went before it told what it has")
        elif trigger.ready_at and self.now > trigger.ready_at + timedelta(seconds=settings.GPUPLANE_INVENTORY_SECONDS):
            within = f"within {settings.GPUPLANE_INVENTORY_SECONDS} s"
            self._fail(trigger, f"node {trigger.node} is ready, but {_lacking(node)} {within}")

    @atomic_retry
    def _serve(self, trigger: Trigger, node: Node, claim: NodeClaim | None) -> None:
        """The node has its devices: keep them for those it was made for, and have these tried again."""
        if not move(trigger, TriggerState.SERVED, now=self.now, served_at=self.now):
            return
        self._learn(trigger, node)
        if claim is not None and claim.inventory_at is None:
            NodeClaim.objects.filter(pk=claim.pk).update(inventory_at=self.now)
            transaction.on_commit(partial(observe, claim, self.now))
        transaction.on_commit(OUTCOMES.labels(SERVED).inc)
        self._keep_for(trigger, node)
        announce(node=node.name)

    def _learn(self, trigger: Trigger, node: Node) -> None:
        """Note the shape that the pool's node has in truth."""
        seen = shapes.of_node(node)
        pool = Pool.objects.select_for_update().filter(name=trigger.request.pool).first()
        if pool is None or seen is None:
            return
        wrong = pool.stated is not None and not shapes.agrees(pool.stated, seen)
        if pool.seen == seen and (not wrong or pool.overruled == pool.stated):
            return
        pool.seen = seen
        if wrong:
            pool.overruled = pool.stated
            log.warning("growth.shape_corrected", pool=pool.name, node=node.name)
        pool.changed_at = self.now
        pool.save(update_fields=["seen", "overruled", "changed_at"])

    def _keep_for(self, trigger: Trigger, node: Node) -> None:
        """Keep for each pod its devices, those that it holds already or that are planned for it now. A device that
        several share is kept for all of them.

        Not those of pods of queues: their loop gives devices to any pod of a workload, and holds them within a moment.
        """
        waiting = PodRefusal.objects.filter(pod_uid__in=trigger.pods, request__isnull=False, member__isnull=True)
        rows = {row.pod_uid: row for row in waiting}
        snapshot = fleet.current().snapshot
        at = snapshot.node_index.get(node.name)
        if at is None:
            return
        given: dict[str, list[int]] = {}
        # who was quicker, here or elsewhere, is counted in the snapshot
        holding = AllocationDevice.objects.filter(allocation__state__in=LIVE, allocation__pod_uid__in=list(rows))
        for uid, device, there in holding.values_list("allocation__pod_uid", "device_id", "device__node_id"):
            given.setdefault(uid, []).extend([device] if there == node.pk else [])
        for uid in trigger.pods:
            if uid not in rows or uid in given:
                continue
            request = request_of(rows[uid].request).under(share_policy())
            decision = plan(snapshot, request, candidates=[at], verdicts_up_to=0)
            given[uid] = [grant.device_id for grant in decision.grants]
            snapshot = taken(snapshot, decision)
        before = set(QueueReservation.objects.filter(pod_uid__in=list(given)).values_list("pod_uid", flat=True))
        made = [
            QueueReservation(
                pod_uid=uid,
                priority=0,
                devices=sorted(devices),
                growth=True,
                made_at=self.now,
                until=self.now + KEPT,
            )
            for uid, devices in given.items()
            if devices and uid not in before
        ]
        QueueReservation.objects.bulk_create(made)
        keep({device for one in made for device in one.devices}, now=self.now)

    def _fail(self, trigger: Trigger, reason: str) -> None:
        fail(trigger, reason, now=self.now)


def _lacking(node: Node | None) -> str:
    """What the node lacks until its devices can be given."""
    devices = list(Device.objects.filter(node=node, presence=Presence.PRESENT).order_by("minor")) if node else []
    if not devices:
        return "no agent told what it has"
    for device in devices:
        why = device.closed or device.conflict or (f"{device.stranger} uses it" if device.stranger else "")
        if why:
            return f"{device.type} {device.minor} could not be given: {why}"
    return "pods were not let on it"


def observe(claim: NodeClaim, inventory_at: datetime) -> None:
    """Count the times of the NodeClaim's steps, once it has taken them all."""
    claim.inventory_at = inventory_at
    for step in Step:
        reached = getattr(claim, f"{step.value}_at")
        if step is not Step.CREATED and reached is not None:
            PROVISION.labels(step.value).observe(max((reached - claim.created_at).total_seconds(), 0))


def end_protection(cluster: Cluster, *, now: datetime) -> None:
    """End the protection of nodes with a bound pod, and of nodes whose time is over. Raises `TemporaryKubeError`."""
    for claim in NodeClaim.objects.filter(protected=True):
        trigger = Trigger.objects.filter(name=claim.trigger).first()
        over = trigger is None or trigger.state in (TriggerState.FAILED, TriggerState.WITHDRAWN)
        # the pod may have ended since, and the name may be that of a node before
        bound = Allocation.objects.filter(node__name=claim.node, bound_at__gte=claim.created_at).exists()
        kept = claim.inventory_at is None or now < claim.inventory_at + KEPT
        if not (over or bound or not kept or claim.deleted_at):
            continue
        try:
            kube_nodes.annotate(cluster, name=claim.node, annotations={DO_NOT_DISRUPT: None})
        except NotFoundInCluster:
            log.debug("growth.node_gone", node=claim.node)
        except PermanentKubeError as error:  # the next round tries again; other nodes are not kept waiting
            log.warning("growth.node_stays_protected", node=claim.node, error=str(error))
            continue
        NodeClaim.objects.filter(pk=claim.pk).update(protected=False)


@atomic_retry
def end_keeping(*, now: datetime) -> None:
    """Delete reservations of new nodes that are over, or whose pods wait no longer."""
    rows = list(QueueReservation.objects.filter(growth=True))
    waiting = set(PodRefusal.objects.values_list("pod_uid", flat=True)) if rows else set()
    over = [row.pk for row in rows if row.until <= now or row.pod_uid not in waiting]
    if over:
        # in the order of their keys, as the loop of the queues locks those that it replaces
        locked = QueueReservation.objects.select_for_update().filter(pk__in=over).order_by("pk")
        devices = {device for row in locked for device in row.devices}
        locked.delete()
        keep(devices, now=now)
