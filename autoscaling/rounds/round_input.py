"""What a round decides from: who waits, which pools there are, what is coming, as input of the engine.

Invariants: a pod is in the input only if, by its rows, it lacks nothing but devices. It is in the input once it
has waited `GPUPLANE_SCALE_AFTER_SECONDS`, or will have within `TOGETHER`, so that pods created together share nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from django.conf import settings
from django.db.models import Count, Exists, OuterRef

from allocations import fleet
from allocations.choices import LIVE
from allocations.engine.growth import ComingNode, Demand, GrowthInput, Need, Pool
from allocations.engine.growth.shapes import Shape, packed
from allocations.engine.queueing.rounds import DecisionInput, decide
from allocations.engine.queueing.workloads import Age, Member, Workload
from allocations.models import Allocation, PodRefusal
from allocations.pod_request import PodRequest, parse_pod_request
from allocations.scheduling.queueing.loop import is_in_use
from allocations.scheduling.queueing.round_input import InputReader, without_kept
from allocations.scheduling.queueing.waiting_rows import NodesCache
from allocations.waiting import NOT_ASKED, NOT_OURS, QUEUED
from autoscaling import pools, shapes
from autoscaling.choices import COMING, TAKEN_UP, TriggerState
from autoscaling.models import NodeClaim, Trigger
from autoscaling.models import Pool as PoolRow
from autoscaling.rounds.entries import Entry, entries_of, entry_for, serves
from autoscaling.rounds.failures import EarlierFailures
from autoscaling.rounds.serving import is_usable
from claims.admission.counted import takes_some
from claims.dialects.request import DeviceRequest, Dialect
from claims.lookup import ClaimFinder
from kube.client import Cluster
from kube.device_types import GPU
from kube.keys import NODEPOOL_LABEL
from kube.node_rules import NodeTraits, refusal_of
from kube.objects import Pod, PodSpec
from kube.resources import PODS
from nodes.models import Device, Node

TOGETHER: Final = timedelta(seconds=0.5)
"""Pods that come within this time of each other share a plan."""
PENDING: Final = "spec.nodeName=,status.phase=Pending"
FORGOTTEN: Final = timedelta(minutes=30)
"""A NodeClaim that nobody wants of us, and whose node tells nothing for so long, is no GPU node that is coming."""
EXCLUDED: Final = "its attempts there failed"


class Waiter(NamedTuple):
    """A pod that waits. `since`: when it was seen first."""

    pod: Pod
    since: datetime
    queued: bool

    @property
    def name(self) -> str:
        """What the plan knows it by: as the queues do."""
        meta = self.pod.metadata
        return f"{meta.namespace}/{meta.name}/{meta.uid}"

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.pod.metadata.uid


class RoundInput(NamedTuple):
    """`entries`: by place in the input; `coming`: triggers in the order of the input, but not those whose nodes
    are in the snapshot; `skipped`: pod → why it is not asked about.
    """

    inputs: GrowthInput
    queues: DecisionInput | None
    entries: Sequence[Entry]
    coming: Sequence[Trigger]
    waiters: Mapping[str, Waiter]
    skipped: Mapping[str, str]


class Waiting(NamedTuple):
    """`waiters`: pods of the plan; `due`: one has waited long enough; `next_due`: when the next one will, or None."""

    waiters: list[Waiter]
    due: bool
    next_due: datetime | None


def read_waiting(cluster: Cluster, now: datetime) -> Waiting:
    """The pods that wait and hold nothing. Raises `kube.errors`."""
    held = Allocation.objects.filter(state__in=LIVE).exclude(pod_uid="").values("pod_uid")
    rows = PodRefusal.objects.exclude(rule__in=set(NOT_OURS) - {NOT_ASKED}).exclude(pod_uid__in=held)
    since = {uid: (first, queued == QUEUED) for uid, first, queued in rows.values_list("pod_uid", "first_at", "rule")}
    if not since:
        return Waiting([], due=False, next_due=None)
    listed = cluster.list(PODS.path(), Pod, field_selector=PENDING).items
    waiters = [
        Waiter(pod, *since[pod.metadata.uid])
        for pod in listed
        if pod.metadata.uid in since and not pod.metadata.deletion_timestamp
    ]
    if not waiters:
        return Waiting([], due=False, next_due=None)
    return due_of(waiters, now)


def due_of(waiters: Sequence[Waiter], now: datetime) -> Waiting:
    """Of those that wait, who has waited long enough, or is about to: those share a plan."""
    after = timedelta(seconds=settings.GPUPLANE_SCALE_AFTER_SECONDS)
    later = [one.since + after for one in waiters if one.since + after > now]
    asked = [one for one in waiters if one.since + after <= now + TOGETHER]
    return Waiting(asked, due=len(later) < len(waiters), next_due=min(later, default=None))


class GrowthInputReader:
    """Makes the inputs of one process; keeps what did not change."""

    def __init__(self) -> None:
        self._nodes = NodesCache()
        self._queues_reader = InputReader()

    def take(self, waiters: Sequence[Waiter], now: datetime) -> RoundInput:
        """The input for these pods."""
        return _Builder(waiters, now, self._nodes.read(), self._queues_reader).build()


class _Builder:
    def __init__(
        self, waiters: Sequence[Waiter], now: datetime, nodes: Mapping[str, NodeTraits], queues_reader: InputReader
    ) -> None:
        self.now = now
        self.nodes = nodes
        self.queues_reader = queues_reader
        self.rows = [row for row in PoolRow.objects.filter(deleted_at__isnull=True) if row.shape is not None]
        self.failures = EarlierFailures.read(now)
        self.skipped: dict[str, str] = {}
        self.look = fleet.current()
        # the snapshot counts those who took devices since the pods were read: asked about again, a node more would come
        rows = Allocation.objects.filter(state__in=LIVE, pod_uid__in=[waiter.uid for waiter in waiters])
        holding = set(rows.values_list("pod_uid", flat=True))
        self.waiters = {waiter.name: waiter for waiter in waiters if waiter.uid not in holding}
        self.snapshot = without_kept(self.look, {waiter.uid for waiter in waiters})
        self.coming = self._coming()
        self._rules: dict[bytes, tuple[int, ...] | None] = {}

    def build(self) -> RoundInput:
        """Everything as of now."""
        wanted, queues = self._workloads()
        verdicts: dict[str, dict[int, pools.Verdict]] = {}
        for member in (member for workload in wanted for member in workload.members):
            spec = self.waiters[member.name].pod.spec
            verdicts[member.name] = {at: pools.verdict_of(spec, row) for at, row in enumerate(self.rows)}
        entries = entries_of(self.rows, verdicts.values(), self.coming)
        chosen = [
            Pool(
                f"{entry.row.name}",
                shapes.node_row(entry.row.name, entry.row.shape or {}, entry.row.labels),
                weight=entry.row.weight,
                most=pools.most_of(entry.row, coming=self._uncounted(entry.row.name)),
                labels={**entry.row.labels, **entry.picks},
            )
            for entry in entries
        ]
        self._forms = [Shape(pool.node) for pool in chosen]
        demands = []
        for workload in wanted:
            needs = tuple(self._need(member, entries, verdicts[member.name]) for member in workload.members)
            demands.append(
                Demand(
                    workload.name,
                    needs,
                    topology=workload.topology,
                    beside=workload.beside,
                    above=workload.above,
                )
            )
        placed = [(one, self._entry_of(one, entries)) for one in self.coming]
        there = [(one, at) for one, at in placed if at is not None]
        ours = tuple(ComingNode(one.name, at) for one, at in there)
        surely, perhaps = self._of_others(entries)
        coming = (*surely, *ours, *perhaps)
        labels = [self._labels(name) for name in self.snapshot.node_names]
        inputs = GrowthInput(self.snapshot, labels, tuple(chosen), tuple(demands), coming)
        return RoundInput(inputs, queues, entries, [one for one, _ in there], self.waiters, self.skipped)

    def _workloads(self) -> tuple[list[Workload], DecisionInput | None]:
        """Workloads that lack devices alone: what the queues say of theirs, and every other pod by itself."""
        found: list[Workload] = []
        finder = ClaimFinder()
        for place, waiter in enumerate(self.waiters.values()):
            pod_request = None if waiter.queued else parse_pod_request(waiter.pod, finder)
            if not isinstance(pod_request, PodRequest) or self._is_skipped(waiter):
                continue
            age = Age(False, f"{waiter.since:%Y-%m-%dT%H:%M:%S.%fZ}", place)
            member = Member(waiter.name, pod_request.request, age, self._rows_for(waiter.pod.spec))
            found.append(Workload(waiter.name, "", (member,), 0, age))
        queues: DecisionInput | None = None
        if any(waiter.queued for waiter in self.waiters.values()) and is_in_use():
            asked = self.queues_reader.read((), look=self.look).decision_input
            # whoever a round of the queues leaves for the next would not be asked about here
            queues = msgspec.structs.replace(asked, snapshot=self.snapshot, most=None)
            answer = decide(queues)
            for workload in queues.waiting:
                why = answer.waiting.get(workload.name)
                there = [self.waiters.get(member.name) for member in workload.members]
                if why is None or not why.devices or None in there:
                    continue
                if not any(self._is_skipped(waiter) for waiter in there if waiter is not None):
                    found.append(workload)
        return found, queues

    def _is_skipped(self, waiter: Waiter) -> bool:
        why = self.failures.why_not_now(waiter.uid, self.rows)
        if why:
            self.skipped[waiter.name] = why
        return bool(why)

    def _need(self, member: Member, entries: Sequence[Entry], verdicts: Mapping[int, pools.Verdict]) -> Need:
        waiter = self.waiters[member.name]
        excluded: dict[int, str] = {}
        for place, entry in enumerate(entries):
            at = next(at for at, row in enumerate(self.rows) if row.name == entry.row.name)
            if verdicts[at].why:
                excluded[place] = verdicts[at].why
            elif not serves(entry, waiter.pod.spec, verdicts[at]):
                excluded[place] = "its nodes are for other values of a label"
        failed = self.failures.pools_of(waiter.uid, self.rows)
        request = packed(member.request)
        able = [at for at in range(len(entries)) if at not in excluded and not self._forms[at].refusal(request)]
        if any(entries[at].row.name not in failed for at in able):
            excluded |= {at: EXCLUDED for at in able if entries[at].row.name in failed}
        return Need(member, excluded, by_itself=self._by_itself(waiter, member.request))

    def _by_itself(self, waiter: Waiter, request: DeviceRequest) -> bool:
        """Whether Karpenter makes a node for the pod without a trigger pod."""
        if request.dialect != Dialect.NATIVE or waiter.queued or takes_some(waiter.pod):
            return False
        asked = sum(ask.count for ask in request.asks if ask.type == GPU)
        rows = self._rows_for(waiter.pod.spec)
        names = self.snapshot.node_names
        here = names if rows is None else [names[row] for row in rows]
        return not any(self._free_by_requests.get(name, 0) >= asked for name in here)

    @cached_property
    def _free_by_requests(self) -> Mapping[str, int]:
        """Node → GPUs that nobody holds by `nvidia.com/gpu`, which is what Karpenter counts."""
        gpus = Device.objects.filter(type=GPU, parent="").values_list("node__name").annotate(Count("pk"))
        free: defaultdict[str, int] = defaultdict(int, dict(gpus))
        native = Allocation.objects.filter(state__in=LIVE, dialect=Dialect.NATIVE)
        for name, count in native.values_list("node__name").annotate(Count("devices")):
            free[name] -= count
        return free

    def _rows_for(self, spec: PodSpec) -> tuple[int, ...] | None:
        """Rows of the nodes there that the pod's rules allow, None for all."""
        key = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))
        if key not in self._rules:
            there = [self.nodes.get(name) or NodeTraits(name, {}) for name in self.snapshot.node_names]
            rows = tuple(row for row, node in enumerate(there) if not refusal_of(spec, node))
            self._rules[key] = rows if len(rows) < len(there) else None
        return self._rules[key]

    def _labels(self, name: str) -> Mapping[str, str]:
        return self.nodes[name].labels if name in self.nodes else {}

    def _coming(self) -> list[Trigger]:
        """Triggers whose node is coming, those furthest on first. A node that is usable by now is in the snapshot, with
        what others took of it: it would be counted twice.
        """
        found = list(Trigger.objects.filter(state__in=COMING).select_related("request").order_by("pk"))
        found.sort(key=lambda one: -list(COMING).index(TriggerState(one.state)))
        claims = NodeClaim.objects.filter(trigger__in=[one.name for one in found]).order_by("pk")
        node_of = dict(claims.values_list("trigger", "node"))
        followed = Node.objects.filter(name__in=node_of.values()).exclude(cluster_uid="")
        nodes = {name: self.nodes[name] for name in followed.values_list("name", flat=True) if name in self.nodes}
        pool_of = {row.name: row for row in self.rows}
        unnamed = self._unnamed(pool_of) if "" in node_of.values() else Counter[str]()

        def is_there(trigger: Trigger) -> bool:
            pool = trigger.request.pool
            if node_of.get(trigger.name) == "" and unnamed[pool]:
                unnamed[pool] -= 1
                return True
            node = nodes.get(node_of.get(trigger.name, ""))
            return node is not None and is_usable(node, pool_of.get(pool), self.snapshot)

        return [one for one in found if not is_there(one)]

    def _unnamed(self, pool_of: Mapping[str, PoolRow]) -> Counter[str]:
        """Pool → number of usable nodes that no NodeClaim names yet: Karpenter removes a node's taints before it writes
        the node's name to the NodeClaim. Nodes of NodeClaims without a trigger may be among them; `_of_others` counts
        those NodeClaims.
        """
        named = set(NodeClaim.objects.filter(deleted_at__isnull=True).values_list("node", flat=True))
        pools_of_nodes = {
            node.name: pool
            for node in self.nodes.values()
            if (pool := node.labels.get(NODEPOOL_LABEL, "")) in pool_of
            and node.name not in named
            and is_usable(node, pool_of[pool], self.snapshot)
        }
        for name in NodeClaim.objects.filter(node__in=list(pools_of_nodes)).values_list("node", flat=True):
            pools_of_nodes.pop(name, None)  # it goes with its NodeClaim
        return Counter(pools_of_nodes.values())

    def _uncounted(self, pool: str) -> int:
        """Nodes of the pool that are wanted, and that its NodePool has not counted yet."""
        return sum(one.request.pool == pool and one.state not in TAKEN_UP for one in self.coming)

    def _of_others(self, entries: Sequence[Entry]) -> tuple[list[ComingNode], list[ComingNode]]:
        """Coming nodes that Karpenter makes without a trigger pod, until their inventory is registered, in two lists.

        First: NodeClaims older than every trigger of the pool that has no NodeClaim yet. Second: the others, which may
        still turn out to be a trigger's.
        """
        untied: dict[str, datetime] = {}
        for one in self.coming:
            if not one.node_claim:
                made = one.created_at or self.now
                untied[one.request.pool] = min(made, untied.get(one.request.pool, made))
        place_of = {entry.row.name: at for at, entry in enumerate(entries) if entry.is_plain}
        told = Device.objects.filter(node__name=OuterRef("node"))
        claims = NodeClaim.objects.filter(trigger="", deleted_at__isnull=True, created_at__gt=self.now - FORGOTTEN)
        claims = claims.filter(~Exists(told), pool__in=list(place_of)).order_by("pk")
        found: tuple[list[ComingNode], list[ComingNode]] = [], []
        for claim in claims:
            doubtful = claim.pool in untied and claim.created_at >= untied[claim.pool].replace(microsecond=0)
            found[doubtful].append(ComingNode(claim.name, place_of[claim.pool], ours=False))
        return found

    @staticmethod
    def _entry_of(trigger: Trigger, entries: Sequence[Entry]) -> int | None:
        """The entry that the coming node is of; None where its pool is gone or has no shape any more, or where it was
        closed before Karpenter took the trigger up.
        """
        untaken = trigger.state not in TAKEN_UP and not trigger.node_claim
        for at, entry in enumerate(entries):
            if entry.row.name == trigger.request.pool and entry == entry_for(trigger, entry.row):
                return None if untaken and entry.row.closed else at
        return None


def uids(names: Collection[str], waiters: Mapping[str, Waiter]) -> list[str]:
    """UIDs of these pods, sorted."""
    return sorted(waiters[name].uid for name in names if name in waiters)
