"""Writes a plan: scaling requests and triggers that follow from it, and what is said of each pod that waits.

Invariants: one transaction, under the fence; the second need of a kind raises the active request of that kind; a
trigger that nobody needs any more is withdrawn unless Karpenter makes its node already; no pool is asked for more
nodes than its limits leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from django.conf import settings

from allocations.engine.growth import Growth, GrowthNode, grow
from allocations.engine.growth.quotas import grow_within_quotas
from audit.choices import EventKind
from audit.services import record
from autoscaling import shapes
from autoscaling.choices import ACTIVE, COMING, TAKEN_UP, TriggerState
from autoscaling.models import PodGrowth, ScalingRequest, Trigger
from autoscaling.rounds.entries import Entry
from autoscaling.rounds.fence import pass_fence
from autoscaling.rounds.round_input import RoundInput, Waiter, uids
from autoscaling.rounds.trigger_progress import UNTIED, untied_claims
from autoscaling.transitions import ACTOR, settle, trigger_moved
from autoscaling.triggers import manifest, need_of, trigger_name
from storage.cursors import write_rows
from storage.enqueue import send_after_commit
from storage.transactions import atomic_retry

WRITE_POD_EVENTS: Final = "autoscaling.tasks.write_pod_events"
UNNEEDED: Final = "nobody waits for it any more"
NO_POOL: Final = "its pool is gone, makes no nodes for pods, or has nodes of a shape that is not known any more"
TOO_SMALL: Final = "more of the node is needed"
YOUNG: Final = timedelta(seconds=0.8)
"""Karpenter's shortest batch of pods is a second."""
TOLD: Final = 2 * UNTIED
"""So long after it was made a trigger is tied, or Karpenter has said why it makes no node."""
REASON_LONGEST: Final = 500


def plan_of(round_input: RoundInput) -> Growth:
    """The engine's plan."""
    if round_input.queues is None:
        return grow(round_input.inputs)
    return grow_within_quotas(round_input.inputs, round_input.queues)


@atomic_retry
def write_plan(round_input: RoundInput, growth: Growth, *, number: int, now: datetime) -> list[str]:
    """Bring the rows in line with the plan; names of triggers that are wanted anew. Raises MovedOn."""
    pass_fence(number)
    writing = _Writing(round_input, now)
    nodes = {node.coming: node for node in growth.nodes if node.coming}
    for trigger in round_input.coming:
        writing.coming(trigger, nodes[trigger.name])
    for node in growth.new:
        writing.new(node)
    writing.withdraw_homeless()
    writing.settle()
    _write_answers(round_input, growth, writing, now)
    return writing.made


class _Writing:
    def __init__(self, round_input: RoundInput, now: datetime) -> None:
        self.round_input = round_input
        self.now = now
        self.made: list[str] = []
        self.trigger_of: dict[str, str] = {}
        """Pod → name of its trigger."""
        self.short: dict[str, str] = {}
        """Pod → why no node was wanted for it after all."""
        self._touched: set[int] = set()
        self._room: dict[str, int | None] = {}

    def coming(self, trigger: Trigger, node: GrowthNode) -> None:
        """Note whom a coming node is for; withdraw its trigger where that makes no sense any more."""
        pods = uids(node.pods, self.round_input.waiters)
        untaken = trigger.state not in TAKEN_UP and not trigger.node_claim
        # where the pool has one instance type, its node has all GPUs whatever the trigger pod asks for
        small = node.gpus > trigger.gpus and (self._is_young(trigger) or not self._is_fixed(node))
        if untaken and (small if node.pods else not self._may_have_come(trigger)):
            trigger_moved(trigger, TriggerState.WITHDRAWN, now=self.now, reason=TOO_SMALL if node.pods else UNNEEDED)
            self._touched.add(trigger.request_id)
            if node.pods:
                self._want(self.round_input.entries[node.pool], node)
            return
        self.trigger_of |= dict.fromkeys(node.pods, trigger.name)
        if trigger.pods != pods and (pods or trigger.state != TriggerState.READY):
            Trigger.objects.filter(pk=trigger.pk).update(pods=pods)

    def _may_have_come(self, trigger: Trigger) -> bool:
        """Whether a NodeClaim may exist that is not tied to the trigger yet. Karpenter writes events for about ten pods
        at once and drops the others; NodeClaims of pods without an event are found by node, or by pool and time.
        """
        is_early = trigger.created_at is not None and self.now < trigger.created_at + TOLD
        return is_early and untied_claims(trigger, self.now).exists()

    def _is_young(self, trigger: Trigger) -> bool:
        """Whether Karpenter, which waits for more pods, cannot have taken it up."""
        return trigger.created_at is None or self.now < trigger.created_at + YOUNG

    def _is_fixed(self, node: GrowthNode) -> bool:
        return bool(self.round_input.entries[node.pool].row.instance_type)

    def new(self, node: GrowthNode) -> None:
        """Want a node, where the pool's limits leave one: all entries of a pool share them."""
        entry = self.round_input.entries[node.pool]
        name = entry.row.name
        if name not in self._room:
            self._room[name] = self.round_input.inputs.pools[node.pool].most
        left = self._room[name]
        if left is not None:
            if left <= 0:
                self.short |= dict.fromkeys(node.pods, f"pool {name} may make no more nodes")
                return
            self._room[name] = left - 1
        self._want(entry, node)

    def withdraw_homeless(self) -> None:
        """Withdraw triggers whose pool is gone, closed or of unknown shape, and which Karpenter has not taken up."""
        known = [one.pk for one in self.round_input.coming]
        lost = Trigger.objects.filter(state__in=COMING, node_claim="").exclude(state__in=TAKEN_UP).exclude(pk__in=known)
        for trigger in lost.exclude(name__in=self.made).select_related("request"):
            trigger_moved(trigger, TriggerState.WITHDRAWN, now=self.now, reason=NO_POOL)
            self._touched.add(trigger.request_id)

    def settle(self) -> None:
        """Bring the states of the requests that changed in line with their triggers."""
        for pk in sorted(self._touched):
            settle(pk, now=self.now)

    def _want(self, entry: Entry, node: GrowthNode) -> None:
        waiters = [self.round_input.waiters[name] for name in node.pods]
        shape = entry.row.shape or {"devices": [], "links": []}
        model = shapes.model_of(shape)
        pods, types = [one.pod for one in waiters], _types(self.round_input, node)
        need = need_of(pods, entry.row, entry.picks, entry.excluded, types)
        request = self._request(entry, model, msgspec.to_builtins(need), need.digest)
        ordinal = request.ordinals
        ScalingRequest.objects.filter(pk=request.pk).update(ordinals=ordinal + 1)
        scope = f"{settings.GPUPLANE_NAMESPACE}/{request.created_at.isoformat()}"
        name = trigger_name(model, request.pk, ordinal, scope=scope)
        body = manifest(
            name=name,
            namespace=settings.GPUPLANE_NAMESPACE,
            image=settings.GPUPLANE_PAUSE_IMAGE,
            pool=entry.row,
            model=model,
            need=need,
            gpus=node.gpus,
            pods=pods,
            original={"request": request.pk, "ordinal": ordinal, "pool": entry.row.name, "model": model},
        )
        Trigger.objects.create(
            request=request,
            ordinal=ordinal,
            name=name,
            gpus=node.gpus,
            manifest=body,
            pods=sorted(one.uid for one in waiters),
        )
        self.trigger_of |= dict.fromkeys(node.pods, name)
        self.made.append(name)
        self._touched.add(request.pk)
        record(
            kind=EventKind.SCALING_WANTED,
            message=f"a node of pool {entry.row.name} is wanted for {len(waiters)} pods: {node.gpus} GPUs",
            actor=ACTOR,
            now=self.now,
            name=entry.row.name,
            data={"trigger": name, "pods": [one.name.rpartition("/")[0] for one in waiters[:20]]},
        )

    def _request(self, entry: Entry, model: str, need: dict[str, object], digest: str) -> ScalingRequest:
        """The active request of this kind, made where there is none."""
        active = ScalingRequest.objects.select_for_update().filter(
            pool=entry.row.name, model=model, shape=digest, state__in=ACTIVE
        )
        found = active.first()
        if found is None:
            found = ScalingRequest.objects.create(
                pool=entry.row.name,
                model=model,
                shape=digest,
                need=need,
                created_at=self.now,
                changed_at=self.now,
            )
        return found


def _types(round_input: RoundInput, node: GrowthNode) -> set[str]:
    """The device types that the node's pods ask for."""
    wanted = set(node.pods)
    return {
        ask.type
        for one in round_input.inputs.demands
        for need in one.needs
        if need.member.name in wanted
        for ask in need.member.request.asks
    }


def _write_answers(round_input: RoundInput, growth: Growth, writing: _Writing, now: datetime) -> None:
    """One row for each pod that was asked about, or that was passed over for a reason; others have none."""
    said: dict[str, tuple[str, str, str]] = {}
    for name, reason in {**growth.reasons, **round_input.skipped, **writing.short}.items():
        said[name] = "", "", reason[:REASON_LONGEST]
    for name, place in growth.pool_of.items():
        if name not in writing.short:
            said[name] = round_input.entries[place].row.name, writing.trigger_of.get(name, ""), ""
    there = [(round_input.waiters[name], answer) for name, answer in said.items() if name in round_input.waiters]
    _write_said({waiter.uid: (waiter, answer) for waiter, answer in there}, now)


def _write_said(by_uid: Mapping[str, tuple[Waiter, tuple[str, str, str]]], now: datetime) -> None:
    rows = {row.pod_uid: row for row in PodGrowth.objects.all()}
    gone = [uid for uid in rows if uid not in by_uid]
    changed: list[PodGrowth] = []
    made: list[PodGrowth] = []
    for uid, (waiter, answer) in by_uid.items():
        row = rows.get(uid)
        if row is not None and (row.pool, row.trigger, row.reason) == answer:
            continue
        meta = waiter.pod.metadata
        row = row or PodGrowth(pod_uid=uid, namespace=meta.namespace, pod_name=meta.name)
        row.pool, row.trigger, row.reason = answer
        row.changed_at = now
        (changed if row.pk else made).append(row)
    for start in range(0, len(gone), 500):
        PodGrowth.objects.filter(pod_uid__in=gone[start : start + 500]).delete()
    PodGrowth.objects.bulk_create(made, batch_size=500)
    write_rows(changed, ["pool", "trigger", "reason", "changed_at"])
    if made or changed:
        send_after_commit(WRITE_POD_EVENTS)
