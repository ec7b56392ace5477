"""The steps of a round, in their order. Called by `autoscaling.loop`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db.models import Max, Q

from allocations.component_pods import trigger_pods
from autoscaling.choices import COMING
from autoscaling.models import NodeClaim, PodGrowth, Pool, ScalingRequest, Trigger
from autoscaling.rounds.fence import begin
from autoscaling.rounds.planning import plan_of, write_plan
from autoscaling.rounds.round_input import GrowthInputReader, Waiter, read_waiting
from autoscaling.rounds.serving import end_keeping, end_protection
from autoscaling.rounds.trigger_pods import delete_ended, make_wanted
from autoscaling.rounds.trigger_progress import TriggerProgress
from kube.client import Cluster
from storage.clock import database_now

PLAN_AGAIN: Final = timedelta(seconds=5)
"""A plan of the same rows is made again so often: nodes, capacity and pools change."""
IDLE_LOOKS: Final = timedelta(seconds=30)
"""Without anything under way, how often the cluster is looked at for trigger pods that nobody knows."""


class RoundResult(NamedTuple):
    """`busy`: something is under way; `next_due`: when the next pod has waited long enough."""

    busy: bool
    next_due: datetime | None


class Rounds:
    """The rounds of one worker, which end those of any other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = begin()
        self._inputs = GrowthInputReader()
        self._looked: datetime | None = None
        self._planned: tuple[datetime, object] | None = None

    def run(self) -> RoundResult:
        """One round. Raises MovedOn, `kube.errors` and database errors; the next round goes on from the rows."""
        now = database_now()
        end_keeping(now=now)
        grows = Pool.objects.filter(deleted_at__isnull=True).exists()
        # a node that is ready is followed until it serves and Karpenter may have it, though its trigger pod is gone
        under_way = (
            Trigger.objects.filter(Q(pod_gone_at__isnull=True) | Q(state__in=COMING)).exists()
            or NodeClaim.objects.filter(protected=True).exists()
        )
        if not (grows or under_way or PodGrowth.objects.exists() or self._is_to_look(now)):
            return RoundResult(busy=False, next_due=None)
        pods = {}
        if under_way or self._is_to_look(now):
            self._looked = now
            pods = {pod.metadata.name: pod for pod in trigger_pods(self._cluster)}
            TriggerProgress(self._cluster, pods, now).run()
            end_protection(self._cluster, now=now)
        waiting = read_waiting(self._cluster, now)
        coming = Trigger.objects.filter(state__in=COMING).exists()
        if waiting.due or coming or PodGrowth.objects.exists():
            self._plan(waiting.waiters if waiting.due or coming else [], now)
        make_wanted(self._cluster, pods=pods, now=now)
        delete_ended(self._cluster, pods=pods, now=now)
        return RoundResult(busy=coming or under_way, next_due=waiting.next_due)

    def _is_to_look(self, now: datetime) -> bool:
        return self._looked is None or now - self._looked > IDLE_LOOKS

    def _plan(self, waiters: list[Waiter], now: datetime) -> None:
        """Plan, where anything that the plan reads may have changed."""
        states = tuple(Trigger.objects.filter(state__in=COMING).values_list("pk", "state").order_by("pk"))
        pools = tuple(Pool.objects.values_list("pk", "changed_at").order_by("pk"))
        ended = ScalingRequest.objects.aggregate(Max("changed_at"))["changed_at__max"]
        of = (tuple(sorted(waiter.uid for waiter in waiters)), states, pools, ended)
        if self._planned is not None and self._planned[1] == of and now - self._planned[0] < PLAN_AGAIN:
            return
        round_input = self._inputs.take(waiters, now)
        write_plan(round_input, plan_of(round_input), number=self._number, now=now)
        self._planned = now, of
