"""Follows each trigger: to its NodeClaim, its node, and its end.

Invariants: a NodeClaim is tied to one trigger; a trigger whose NodeClaim or node does not come in its time fails, and
its pods are planned for again, but not by rows that are behind the cluster, as they are after an outage; a trigger pod
that is lost before Karpenter took it up is made again, `LOST_MOST` times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec
import structlog
from django.conf import settings
from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime

from autoscaling.choices import COMING, TriggerState
from autoscaling.counters import CREATED, LANDED
from autoscaling.models import NodeClaim, Trigger
from autoscaling.rounds.serving import Serving
from autoscaling.rounds.trigger_pods import delete
from autoscaling.rounds.trigger_transitions import fail, move
from kube import karpenter
from kube.client import Cluster
from kube.errors import NotFoundInCluster, PermanentKubeError
from kube.keys import IN_USE_LABEL, NODEPOOL_LABEL
from kube.nodes import Node, find
from kube.objects import Pod
from kube.resources import EVENTS, NODE_CLAIMS
from kube.scheduling_events import REASON as FAILED_SCHEDULING
from kube.scheduling_events import SchedulingEvent
from storage.transactions import atomic_retry

LOST_MOST: Final = 3
LAUNCH: Final = timedelta(minutes=5)
UNTIED: Final = timedelta(seconds=10)
"""After that without a word of Karpenter's a NodeClaim is tied by pool and time."""
CLOCKS: Final = timedelta(seconds=2)
"""By so much the API server's clock may be behind the database's where times are compared."""
SAID_LONGEST: Final = 500
KARPENTER: Final = "karpenter"

log = structlog.get_logger(__name__)


class EventSource(msgspec.Struct):
    """Who wrote an event, in the older form."""

    component: str = ""


class ClusterEvent(SchedulingEvent):
    """An event, with its reason and who wrote it."""

    reason: str = ""
    source: EventSource = msgspec.field(default_factory=EventSource)
    reporting_component: str = ""

    @property
    def is_karpenters(self) -> bool:
        """Whether Karpenter wrote it; kube-scheduler writes such events on trigger pods as well."""
        return KARPENTER in (self.source.component, self.reporting_component)


def untied_claims(trigger: Trigger, now: datetime) -> QuerySet[NodeClaim]:
    """NodeClaims that may be the trigger's, the oldest first: of its pool, made since, tied to no trigger."""
    since = (trigger.created_at or now) - CLOCKS
    of_pool = NodeClaim.objects.filter(pool=trigger.request.pool, trigger="", deleted_at__isnull=True)
    return of_pool.filter(created_at__gte=since).order_by("created_at", "pk")


class TriggerProgress:
    """One pass. `pods`: the trigger pods that are there, by name."""

    def __init__(self, cluster: Cluster, pods: dict[str, Pod], now: datetime) -> None:
        self.cluster = cluster
        self.pods = pods
        self.now = now
        self.serving = Serving(cluster, now)

    def run(self) -> None:
        """Follow all that are under way. Raises `TemporaryKubeError`; what is refused for one does not stop others."""
        for trigger in Trigger.objects.filter(state__in=COMING).select_related("request").order_by("pk"):
            try:
                if trigger.state == TriggerState.WANTED:
                    self._note_made(trigger)
                if trigger.state == TriggerState.READY:
                    self.serving.follow(trigger, self._claim_of(trigger))
                elif trigger.state != TriggerState.WANTED:
                    self._follow(trigger, self.pods.get(trigger.name))
            except PermanentKubeError as error:
                log.warning("growth.not_followed", trigger=trigger.name, error=str(error))

    def _note_made(self, trigger: Trigger) -> None:
        """Note the pod of a process that was killed before it did: Karpenter may have made the node since, and nobody
        wait for it any more.
        """
        pod = self.pods.get(trigger.name)
        if pod is None or trigger.created_at is not None:  # else it is of an earlier try, and is deleted
            return
        made = parse_datetime(pod.metadata.creation_timestamp or "") or self.now
        created_at = min(made, self.now)
        if move(trigger, TriggerState.CREATED, now=self.now, uid=pod.metadata.uid, created_at=created_at):
            CREATED.inc()

    def _follow(self, trigger: Trigger, pod: Pod | None) -> None:
        if pod is not None and pod.metadata.uid != trigger.uid:
            trigger.uid = pod.metadata.uid
            Trigger.objects.filter(pk=trigger.pk).update(uid=trigger.uid)
        claim = self._claim_of(trigger)
        if claim is None:
            name = self._nominated(trigger) if pod is not None else ""
            if name and self._went_unseen(name):
                self._fail(trigger, f"NodeClaim {name} went before it was seen")
                return
            claim = self._tie(trigger, pod, name)
        if claim is not None:
            self._along(trigger, claim, pod)
            return
        if pod is not None and pod.spec.node_name and not self._is_new(pod.spec.node_name, trigger):
            LANDED.inc()
            log.warning("growth.trigger_landed", trigger=trigger.name, node=pod.spec.node_name)
            delete(self.cluster, pod)
            self._again(trigger, f"it landed on {pod.spec.node_name}, which was there before")
        elif pod is None or pod.finished or pod.metadata.deletion_timestamp:
            self._again(trigger, "its pod was deleted" if pod is None else f"its pod ended: {pod.status.phase}")
        elif trigger.created_at and self.now > trigger.created_at + _seconds(settings.GPUPLANE_TRIGGER_SECONDS):
            if self._is_one_unseen(trigger):
                return
            said = trigger.said or "Karpenter says nothing of it"
            self._fail(trigger, f"no NodeClaim within {settings.GPUPLANE_TRIGGER_SECONDS} s: {said}")

    def _is_new(self, name: str, trigger: Trigger) -> bool:
        """Whether the node was made after the trigger pod, by its pool: its NodeClaim will be known in a moment."""
        node = find(self.cluster, name=name)
        if node is None or trigger.created_at is None or node.labels.get(NODEPOOL_LABEL) != trigger.request.pool:
            return False
        made = parse_datetime(node.metadata.creation_timestamp or "")
        return made is not None and made >= trigger.created_at.replace(microsecond=0)

    def _claim_of(self, trigger: Trigger) -> NodeClaim | None:
        """The NodeClaim that the trigger is tied to."""
        if not trigger.node_claim:
            return None
        return NodeClaim.objects.filter(name=trigger.node_claim, trigger=trigger.name).order_by("-pk").first()

    def _tie(self, trigger: Trigger, pod: Pod | None, nominated: str) -> NodeClaim | None:
        """Find its NodeClaim: by the name in Karpenter's event, by the pod's node, else by pool and time. A trigger pod
        may run on the node of another one's: each is tied to one of their NodeClaims, and either will do.
        """
        free, since = untied_claims(trigger, self.now), trigger.created_at or self.now
        found = NodeClaim.objects.filter(name=nominated).order_by("-pk").first() if nominated else None
        if found is not None and found.trigger:
            found, nominated = None, ""  # kube-scheduler put another trigger pod on its node, which ties it to that
        if nominated and found is None:  # its row comes in a moment; till then nobody takes the trigger for untaken
            Trigger.objects.filter(pk=trigger.pk).update(node_claim=nominated)
        elif not nominated and pod is not None and pod.spec.node_name:
            found = free.filter(node=pod.spec.node_name).first()
        if found is None and not nominated and self.now > since + UNTIED and not trigger.said:
            found = free.first()
        return found if found is not None and self._write_tie(trigger, found) else None

    def _went_unseen(self, name: str) -> bool:
        """Whether the NodeClaim has come and gone while nobody watched, so that it never gets a row."""
        if NodeClaim.objects.filter(name=name).exists():
            return False
        try:
            self.cluster.get(NODE_CLAIMS.path(name=name), karpenter.NodeClaim)
        except NotFoundInCluster:
            return True
        return False

    def _is_one_unseen(self, trigger: Trigger) -> bool:
        """Whether a NodeClaim that may be the trigger's is in the cluster, and its row comes in a moment."""
        since = (trigger.created_at or self.now) - CLOCKS
        new = {
            name
            for name, one in self._there.items()
            if one.pool == trigger.request.pool
            and (made := parse_datetime(one.metadata.creation_timestamp or "")) is not None
            and made >= since
        }
        return bool(new.difference(NodeClaim.objects.filter(name__in=new).values_list("name", flat=True)))

    def _is_behind(self, claim: NodeClaim) -> bool:
        """Whether the NodeClaim was launched or registered, and its row does not say so yet."""
        there = self._there.get(claim.name)
        if there is None or there.metadata.uid != claim.uid:
            return False
        steps = ((claim.launched_at, "Launched"), (claim.registered_at, "Registered"))
        return any(at is None and there.since(kind) is not None for at, kind in steps)

    @cached_property
    def _there(self) -> Mapping[str, karpenter.NodeClaim]:
        """The NodeClaims of the cluster, by name: read where a trigger's time is over."""
        try:
            found = self.cluster.list(NODE_CLAIMS.path(), karpenter.NodeClaim).items
        except NotFoundInCluster:  # Karpenter is gone
            return {}
        return {one.metadata.name: one for one in found}

    @atomic_retry
    def _write_tie(self, trigger: Trigger, claim: NodeClaim) -> bool:
        if not NodeClaim.objects.filter(pk=claim.pk, trigger="").update(trigger=trigger.name):
            return False
        return move(trigger, TriggerState.LAUNCHING, now=self.now, node_claim=claim.name)

    def _nominated(self, trigger: Trigger) -> str:
        """The NodeClaim of Karpenter's event on the pod; what is said against one is noted."""
        events = self._events.get(trigger.uid, [])
        for event in reversed(events):
            if event.reason == karpenter.NOMINATED and (name := karpenter.nominated_node_claim(event.message)):
                return name
        refused = (one for one in reversed(events) if one.reason == FAILED_SCHEDULING and one.is_karpenters)
        said = next((one.message for one in refused), "")
        if said and said[:SAID_LONGEST] != trigger.said:
            trigger.said = said[:SAID_LONGEST]
            Trigger.objects.filter(pk=trigger.pk).update(said=trigger.said)
        return ""

    @cached_property
    def _events(self) -> Mapping[str, list[ClusterEvent]]:
        """Events on trigger pods, by UID of the pod: read once for all of them."""
        found: defaultdict[str, list[ClusterEvent]] = defaultdict(list)
        path = EVENTS.path(namespace=settings.GPUPLANE_NAMESPACE)
        for event in self.cluster.list(path, ClusterEvent, field_selector="involvedObject.kind=Pod").items:
            found[event.involved_object.uid].append(event)
        return found

    def _along(self, trigger: Trigger, claim: NodeClaim, pod: Pod | None) -> None:
        """Launched, registered, ready: or not in time."""
        age = self.now - claim.created_at
        node = self._node_of(claim) if claim.node else None
        if node is not None and node.ready:
            self.serving.ready(trigger, claim, node, pod)
            return
        patience = _seconds(settings.GPUPLANE_REGISTRATION_SECONDS)
        within = f"within {settings.GPUPLANE_REGISTRATION_SECONDS} s"
        if claim.deleted_at is not None:
            self._fail(trigger, f"NodeClaim {claim.name}: {claim.reason}")
        elif claim.launched_at is None and age > LAUNCH:
            if not self._is_behind(claim):
                self._fail(trigger, f"NodeClaim {claim.name} was not launched within 5 minutes: {claim.reason}")
        elif claim.registered_at is None and age > patience:
            if not self._is_behind(claim):
                self._fail(trigger, f"NodeClaim {claim.name} was not registered {within}: {claim.reason}")
        elif claim.registered_at is not None and self.now > claim.registered_at + patience:
            self._fail(trigger, f"node {claim.node} was not ready {within} of its registration: {claim.reason}")
        elif trigger.state == TriggerState.LAUNCHING and claim.registered_at is not None:
            move(trigger, TriggerState.REGISTERED, now=self.now, node=claim.node)

    def _node_of(self, claim: NodeClaim) -> Node | None:
        node = find(self.cluster, name=claim.node)
        if node is not None and node.labels.get(IN_USE_LABEL) == "true" and claim.registered_at is None:
            return None  # an old node by that name
        return node

    def _again(self, trigger: Trigger, why: str) -> None:
        """Make the pod again, unless that happened too often."""
        if trigger.again >= LOST_MOST:
            self._fail(trigger, f"{why}; it was made {trigger.again + 1} times")
        else:
            again = trigger.again + 1
            move(trigger, TriggerState.WANTED, now=self.now, reason=why, again=again, uid="", node_claim="", said="")

    def _fail(self, trigger: Trigger, reason: str) -> None:
        fail(trigger, reason, now=self.now)


def _seconds(count: int) -> timedelta:
    return timedelta(seconds=count)
