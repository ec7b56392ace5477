"""Metrics of the ledger: live allocations, waiting pods, nodes and their agents, withheld devices.

Called by REST (`fleet/metrics/`), beside the GPUs. Invariants: eight queries, whatever the size; a state without
allocations, or groups, and a fleet without waiting pods have a line with 0, for alerts; no pod is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import Count, Min, Q
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from access.actors import SYSTEM
from allocations.choices import GROUP_LIVE, LIVE, GroupState, State
from allocations.models import Allocation, GpuGroup, GroupBackOff, QueueState
from allocations.publish.exposition import exposition
from allocations.reconcile.garbage_collection import RELEASING_LIMIT
from allocations.scheduling.limits import RESERVED_LIMIT
from allocations.selectors import waiting_pods
from allocations.waiting import NOT_OURS
from nodes.choices import NodeState, Presence
from nodes.live.samples import SampleView
from nodes.models import Device, Node, PreemptionReservation
from nodes.unverified_devices import UNREAD

NO_ROOM: Final = "no-room"
"""The rule of a pod that broke none, and only did not fit."""
GRACE: Final = timedelta(seconds=60)
"""An allocation is overdue so long after collection should have moved it on."""


def ledger_metrics(*, samples: Mapping[str, SampleView], now: float) -> str:
    """The exposition, text format 0.0.4. `now`: seconds since 1970."""
    moment = datetime.fromtimestamp(now, UTC)
    families = [
        *_allocations(moment),
        *_waiting(moment),
        *_nodes(moment),
        _ages(samples, now),
        *_withheld(),
        _preemption_reservations(moment),
        *_groups(moment),
        *_queues(),
    ]
    return exposition(families)


def _allocations(now: datetime) -> Iterator[Metric]:
    late = (
        Q(state=State.HELD, hold_until__lt=now - GRACE)
        | Q(state=State.RESERVED, changed_at__lt=now - RESERVED_LIMIT - GRACE)  # an attempt moves reserved_at
        | Q(state=State.RELEASING, releasing_at__lt=now - RELEASING_LIMIT - GRACE)
    )
    live = Allocation.objects.filter(state__in=LIVE).values_list("state")
    rows = live.annotate(all=Count("pk"), late=Count("pk", filter=late)).order_by()
    counted = dict.fromkeys(LIVE, (0, 0)) | {State(state): (count, overdue) for state, count, overdue in rows}
    family = GaugeMetricFamily("gpuplane_allocations", "Allocations whose devices count as used", labels=["state"])
    overdue = GaugeMetricFamily(
        "gpuplane_allocations_overdue", "Those that collection should have moved on a minute ago", labels=["state"]
    )
    for state, (count, late_count) in counted.items():
        family.add_metric([state.value], count)
        if state is not State.BOUND:
            overdue.add_metric([state.value], late_count)
    yield family
    yield overdue


def _waiting(now: datetime) -> Iterator[Metric]:
    rows = waiting_pods(actor=SYSTEM).order_by().values("rule").annotate(pods=Count("pk"), since=Min("first_at"))
    by_rule = {NO_ROOM: (0, now)} | {row["rule"] or NO_ROOM: (row["pods"], row["since"]) for row in rows}
    count = GaugeMetricFamily(
        "gpuplane_pods_waiting", "Pods that ask for devices, wait and hold nothing", labels=["rule"]
    )
    for rule in sorted(by_rule):
        count.add_metric([rule], by_rule[rule][0])
    yield count
    waited = max((now - since).total_seconds() for rule, (_, since) in by_rule.items() if rule not in NOT_OURS)
    yield GaugeMetricFamily(
        "gpuplane_pod_waiting_longest_seconds",
        "Since the first refusal of whoever waits longest for us",
        max(waited, 0.0),
    )


def _nodes(now: datetime) -> Iterator[Metric]:
    """Nodes by state, and the silence of agents, of nodes in the cluster that ever had one."""
    states = dict.fromkeys(NodeState.values, 0)
    silent = GaugeMetricFamily(
        "gpuplane_node_agent_silent_seconds", "Since the node's agent was last heard", labels=["node"]
    )
    for name, state, seen_at in Node.objects.order_by("name").values_list("name", "state", "agent_seen_at"):
        states[state] += 1
        if seen_at is not None and state != NodeState.GONE:
            silent.add_metric([name], max((now - seen_at).total_seconds(), 0.0))
    family = GaugeMetricFamily("gpuplane_nodes", "Nodes", labels=["state"])
    for state, count in states.items():
        family.add_metric([state], count)
    yield family
    yield silent


WITHHELD: Final = {
    "gpuplane_devices_with_stranger": "Devices whose lease somebody outside the ledger holds",
    "gpuplane_devices_in_conflict": "Devices that a pod runs with although the ledger gave them away",
    "gpuplane_devices_closed": (
        "Devices that nobody new gets: a running pod has them, or may have, that the ledger could not write down"
    ),
}
"""Metric → meaning."""


def _withheld() -> Iterator[Metric]:
    """Lines only where there are any; devices that wait for their node's pods to be read have no external holder."""
    families = [GaugeMetricFamily(name, meaning, labels=["node", "type"]) for name, meaning in WITHHELD.items()]
    external, conflict, closed = ~Q(stranger__in=("", UNREAD)), ~Q(conflict=""), ~Q(closed="")
    devices = Device.objects.filter(external | conflict | closed).exclude(presence=Presence.REMOVED)
    counts = devices.values_list("node__name", "type").annotate(
        with_external_holder=Count("pk", filter=external),
        in_conflict=Count("pk", filter=conflict),
        closed_count=Count("pk", filter=closed),
    )
    for node, kind, *counted in counts.order_by("node__name", "type"):
        for family, count in zip(families, counted, strict=True):
            if count:
                family.add_metric([node, kind], count)
    yield from families


def _preemption_reservations(now: datetime) -> Metric:
    count = PreemptionReservation.objects.filter(until__gt=now).count()
    return GaugeMetricFamily("gpuplane_making_way", "Pods with a preemption reservation at this moment", count)


def _groups(now: datetime) -> Iterator[Metric]:
    """Groups of GPUs behind reservation pods by state, and nodes that begin no new one for now."""
    rows = GpuGroup.objects.filter(state__in=GROUP_LIVE).order_by().values_list("state").annotate(count=Count("pk"))
    family = GaugeMetricFamily(
        "gpuplane_reservations", "Groups of GPUs that reservation pods have, or are about to", labels=["state"]
    )
    for state, count in (dict.fromkeys(GROUP_LIVE, 0) | {GroupState(state): count for state, count in rows}).items():
        family.add_metric([state.value], count)
    yield family
    put_off = GroupBackOff.objects.filter(until__gt=now).count()
    yield GaugeMetricFamily(
        "gpuplane_reservation_nodes_put_off", "Nodes that begin no new group, after reservation pods in vain", put_off
    )


def _queues() -> Iterator[Metric]:
    """Amounts and workloads of queues as of the last decision; no lines without queues."""
    gpus = GaugeMetricFamily(
        "gpuplane_queue_gpus",
        "GPUs of a queue's quota: allocated, fair_share, deserved, limit",
        labels=["queue", "models", "amount"],
    )
    waiting = GaugeMetricFamily(
        "gpuplane_queue_waiting", "Workloads that wait in the queue or below it", labels=["queue"]
    )
    for state in QueueState.objects.order_by("name"):
        waiting.add_metric([state.name], state.waiting)
        for quota in state.quotas:
            models = "/".join(quota["models"])
            for label, key in QUEUE_AMOUNTS.items():
                if quota[key] is not None:
                    gpus.add_metric([state.name, models, label], quota[key])
    yield gpus
    yield waiting


QUEUE_AMOUNTS: Final = {"allocated": "allocated", "fair_share": "fairShare", "deserved": "deserved", "limit": "limit"}
"""Label → key of `QueueState.quotas`."""


def _ages(samples: Mapping[str, SampleView], now: float) -> Metric:
    family = GaugeMetricFamily(
        "gpuplane_node_sample_age_seconds", "Since the last sample of the node's agent", labels=["node"]
    )
    for node in sorted(samples):
        family.add_metric([node], samples[node].age_seconds(now=now))
    return family
