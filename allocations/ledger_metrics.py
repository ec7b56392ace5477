"""The ledger as a whole for Prometheus: what lives in it, who waits and why, how nodes and their agents are.

Called by REST (`fleet/metrics/`), beside the GPUs. Kept true: six queries, whatever the size; a state that nobody is in and a fleet where
nobody waits have a line with 0, so that an alert can be written on them; no pod is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import Count, Min, Q
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from access.actors import SYSTEM
from allocations.choices import LIVE, State
from allocations.collection import RELEASING_LIMIT, RESERVED_LIMIT
from allocations.models import Allocation
from allocations.overviews import waiting_pods
from allocations.waiting import NOT_OURS
from nodes.choices import NodeState, Presence
from nodes.live.samples import SampleView
from nodes.models import Device, MakingWay, Node
from nodes.newcomers import UNREAD

NO_ROOM: Final = "no-room"
"""Stands for the rule where none was broken: the pod only did not fit."""
GRACE: Final = timedelta(seconds=60)
"""Past the time at which collection should have moved a row on."""


def ledger_metrics(*, samples: Mapping[str, SampleView], now: float) -> str:
    """The exposition, text format 0.0.4. `now`: seconds since 1970."""
    registry = CollectorRegistry()
    moment = datetime.fromtimestamp(now, UTC)
    families = [
        *_allocations(moment),
        *_waiting(now),
        *_nodes(moment),
        _ages(samples, now),
        *_taken(),
        _ways(moment),
    ]
    registry.register(_Families(families))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """As Prometheus' library asks for them."""
        return iter(self._families)


def _allocations(now: datetime) -> Iterator[Metric]:
    late = (
        Q(state=State.HELD, hold_until__lt=now - GRACE)
        | Q(state=State.RESERVED, changed_at__lt=now - RESERVED_LIMIT - GRACE)  # an attempt moves reserved_at
        | Q(state=State.RELEASING, releasing_at__lt=now - RELEASING_LIMIT - GRACE)
    )
    live = Allocation.objects.filter(state__in=LIVE).values_list("state")
    rows = live.annotate(all=Count("pk"), late=Count("pk", filter=late)).order_by()
    counted = {state: (count, overdue) for state, count, overdue in rows}
    family = GaugeMetricFamily("gpuplane_allocations", "Allocations whose devices count as used", labels=["state"])
    overdue = GaugeMetricFamily(
        "gpuplane_allocations_overdue", "Those that collection should have moved on a minute ago", labels=["state"]
    )
    for state in LIVE:
        family.add_metric([state.value], counted.get(state, (0, 0))[0])
        if state is not State.BOUND:
            overdue.add_metric([state.value], counted.get(state, (0, 0))[1])
    yield family
    yield overdue


def _waiting(now: float) -> Iterator[Metric]:
    rows = waiting_pods(actor=SYSTEM).order_by().values("rule").annotate(pods=Count("pk"), since=Min("first_at"))
    by_rule = {row["rule"] or NO_ROOM: (row["pods"], row["since"]) for row in rows}
    count = GaugeMetricFamily(
        "gpuplane_pods_waiting", "Pods that ask for devices, wait and hold nothing", labels=["rule"]
    )
    for rule in sorted({NO_ROOM, *by_rule}):
        count.add_metric([rule], by_rule.get(rule, (0, None))[0])
    yield count
    oldest = min((since for rule, (_, since) in by_rule.items() if rule not in NOT_OURS), default=None)
    waited = 0.0 if oldest is None else (datetime.fromtimestamp(now, UTC) - oldest).total_seconds()
    yield GaugeMetricFamily(
        "gpuplane_pod_waiting_longest_seconds",
        "Since the first refusal of whoever waits longest for us",
        max(waited, 0.0),
    )


def _nodes(now: datetime) -> Iterator[Metric]:
    """Nodes by state, and for how long agents have been silent: those of nodes that are there and ever had one."""
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


def _taken() -> Iterator[Metric]:
    """Lines only where there are any; devices that wait for their node's pods to be read are no stranger's."""
    strange = GaugeMetricFamily(
        "gpuplane_devices_with_stranger",
        "Devices whose lease somebody outside the ledger holds",
        labels=["node", "type"],
    )
    disputed = GaugeMetricFamily(
        "gpuplane_devices_in_conflict",
        "Devices that a pod runs with although the ledger gave them away",
        labels=["node", "type"],
    )
    strangers, conflicts = ~Q(stranger__in=("", UNREAD)), ~Q(conflict="")
    taken = Device.objects.filter(strangers | conflicts).exclude(presence=Presence.REMOVED)
    counts = taken.values_list("node__name", "type").annotate(
        of_strangers=Count("pk", filter=strangers), in_conflict=Count("pk", filter=conflicts)
    )
    for node, kind, *counted in counts.order_by("node__name", "type"):
        for family, count in zip((strange, disputed), counted, strict=True):
            if count:
                family.add_metric([node, kind], count)
    yield strange
    yield disputed


def _ways(now: datetime) -> Metric:
    count = MakingWay.objects.filter(until__gt=now).count()
    return GaugeMetricFamily("gpuplane_making_way", "Pods for which a node makes way at this moment", count)


def _ages(samples: Mapping[str, SampleView], now: float) -> Metric:
    family = GaugeMetricFamily(
        "gpuplane_node_sample_age_seconds", "Since the last sample of the node's agent", labels=["node"]
    )
    for node in sorted(samples):
        family.add_metric([node], samples[node].age_seconds(now=now))
    return family
