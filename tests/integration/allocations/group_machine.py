"""The machine of test_group_machine: groups of GPUs, the pods that share them and plain pods beside, on nodes whose
kubelets choose at random, lie and forget.

A kubelet here is a table: pod UID → its GPUs. Pods are placed by the ledger's own verbs, as filter, bind, release and
comparison call them, in any order. After each rule nothing is given twice, capacity is conserved, a node has no more
groups than GPUs, and a group that is ready has the GPUs that it was told. At the end everybody goes, and no group is
left.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from access.actors import SYSTEM
from allocations import fleet, ledger
from allocations.choices import GROUP_LIVE, LIVE, GroupState, State
from allocations.engine.plan import plan
from allocations.errors import LostRace
from allocations.ledger.group_devices import GroupOutcome, place_group
from allocations.ledger.group_joining import join_groups
from allocations.ledger.groups import (
    end_groups,
    fail_group,
    lose_group,
    note_pods,
    protect_group,
    put_off,
    release_unused,
)
from allocations.models import Allocation, AllocationDevice, GpuGroup
from allocations.reconcile.kubelets import correct_choices
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from kube.objects import ObjectMeta, Pod, PodSpec
from nodes.checkpoints import CheckpointGrant, checkpoint_put, grants_by_kubelets
from nodes.choices import Mode
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

T = TypeVar("T")
NODES = {"a": 3, "b": 2}
ACTOR = "machine"
NAMESPACE = "gpuplane-reservation"
UNKNOWN = (GroupState.WANTED, GroupState.STARTING)
KNOWN = (GroupState.READY, GroupState.UNPROTECTED)
HELD = (*UNKNOWN, *KNOWN)
LIE = st.one_of(st.none(), st.integers(0, 4))
"""The GPU that is told, by its number, whatever the kubelet gave."""
PICK = st.integers(0, 5)
"""One of what there is, by its number."""
WORDS: dict[str, DeviceRequest] = {
    "half": DeviceRequest(asks=(DeviceAsk("gpu", 1, core_percent=50, memory_ratio=50),)),
    "most": DeviceRequest(asks=(DeviceAsk("gpu", 1, core_percent=80, memory_ratio=80),)),
    "two thirds": DeviceRequest(asks=(DeviceAsk("gpu", 2, core_percent=33, memory_ratio=33),)),
    "whole": DeviceRequest(asks=(DeviceAsk("gpu", 1),)),
    "two whole": DeviceRequest(asks=(DeviceAsk("gpu", 2),)),
}
PLAIN = {
    count: DeviceRequest(asks=(DeviceAsk("gpu", count),), dialect=Dialect.NATIVE, by_kubelet=True) for count in (1, 2)
}


@dataclass
class Kubelet:
    """`record`: pod UID → GPUs."""

    gpus: tuple[str, ...]
    record: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def free(self) -> list[str]:
        taken = {gpu for gpus in self.record.values() for gpu in gpus}
        return [gpu for gpu in self.gpus if gpu not in taken]

    def admit(self, pod_uid: str, count: int, random: Random) -> bool:
        """Whether there were as many."""
        if len(self.free) < count:
            return False
        self.record[pod_uid] = tuple(sorted(random.sample(self.free, count)))
        return True


class GroupMachine(RuleBasedStateMachine):
    """`database` is set by a subclass."""

    database: TestDatabase

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        """Two nodes with as many GPUs as NODES says."""
        self.database.fresh()
        self.random = Random(seed)
        self.kubelets: dict[str, Kubelet] = {}
        self.plain: dict[str, str] = {}
        """UID → node of the plain pods that a scheduler has bound."""
        for name, gpus in NODES.items():
            NodeFactory(name=name, gpus=gpus, mode=Mode.DEVICE_PLUGIN)
            self.kubelets[name] = Kubelet(tuple(f"GPU-{name}-{minor}" for minor in range(gpus)))

    # pods come and go

    @rule(words=st.sampled_from(sorted(WORDS)), node=st.sampled_from(sorted(NODES)))
    def a_pod_comes(self, words: str, node: str) -> None:
        """Filter, and the first steps of its bind."""
        allocation = self._held(WORDS[words], node)
        if allocation is None:
            return
        assert ledger.reserve([allocation], now=self._now)
        (groups,) = join_groups([allocation], pod_namespace=NAMESPACE, now=self._now, actor=ACTOR).values()
        if groups is None:  # a group that has no GPU for it any more
            self._release(Allocation.objects.get(pk=allocation))

    @rule(words=st.sampled_from(sorted(WORDS)), node=st.sampled_from(sorted(NODES)), lie=LIE)
    def a_pod_is_bound(self, words: str, node: str, lie: int | None) -> None:
        """The whole way, with what all reservation pods say that are waited for."""
        self.a_pod_comes(words, node)
        for group in self._groups(GroupState.WANTED):
            group.refresh_from_db()
            if group.state == GroupState.WANTED:
                self._made(group)
        for group in self._groups(GroupState.STARTING):
            group.refresh_from_db()  # the pod's other group ends with one that is refused
            if group.state == GroupState.STARTING:
                self._tells(group, lie)

    @rule(count=st.sampled_from(sorted(PLAIN)), node=st.sampled_from(sorted(NODES)), bound=st.booleans())
    def a_plain_pod_comes(self, count: int, node: str, bound: bool) -> None:
        """By nvidia.com/gpu: its kubelet gives it what it likes, or refuses it."""
        allocation = self._held(PLAIN[count], node)
        if allocation is None:
            return
        assert ledger.reserve([allocation], now=self._now)
        if bound:
            self._runs(Allocation.objects.get(pk=allocation))

    @precondition(lambda self: self._plain(State.RESERVED))
    @rule(pick=PICK)
    def a_plain_pod_is_bound(self, pick: int) -> None:
        self._runs(self._one(self._plain(State.RESERVED), pick))

    @precondition(lambda self: self._live())
    @rule(pick=PICK)
    def a_pod_goes(self, pick: int) -> None:
        """Whatever its bind has come to."""
        self._release(self._one(self._live(), pick))

    # reservation pods

    @precondition(lambda self: self._groups(GroupState.WANTED))
    @rule(pick=PICK)
    def a_reservation_pod_is_made(self, pick: int) -> None:
        """The kubelet gives it GPUs, or refuses it, and its binds fail."""
        self._made(self._one(self._groups(GroupState.WANTED), pick))

    def _made(self, group: GpuGroup) -> None:
        pod_uid = f"reservation-{uuid.UUID(int=self.random.getrandbits(128))}"
        note_pods({group.pk: pod_uid}, now=self._now, actor=ACTOR)
        if not self._kubelet(group).admit(pod_uid, group.gpus, self.random):
            self._in_vain(group)

    @precondition(lambda self: self._groups(GroupState.STARTING))
    @rule(pick=PICK, lie=LIE)
    def a_reservation_pod_tells(self, pick: int, lie: int | None) -> None:
        """What it has, or any GPU of either node."""
        self._tells(self._one(self._groups(GroupState.STARTING), pick), lie)

    def _tells(self, group: GpuGroup, lie: int | None) -> None:
        told = self._kubelet(group).record.get(group.pod_uid, ())
        every = [gpu for kubelet in self.kubelets.values() for gpu in kubelet.gpus]
        if lie is not None:
            told = (every[lie],)
        placed = place_group(group.pk, pod_uid=group.pod_uid, uuids=told, now=self._now, actor=ACTOR)
        assert placed.outcome is not GroupOutcome.MOVED_ON
        if placed.outcome is GroupOutcome.REFUSED:
            self._in_vain(group)
        elif placed.outcome is GroupOutcome.READY:
            if lie is not None:  # what the kubelet has is as it was told, so that later truths can be compared
                self._kubelet(group).record[group.pod_uid] = told
            self._bind_sharers()

    @precondition(lambda self: self._groups(*UNKNOWN))
    @rule(pick=PICK)
    def time_is_over(self, pick: int) -> None:
        self._in_vain(self._one(self._groups(*UNKNOWN), pick))

    @precondition(lambda self: self._groups(GroupState.READY))
    @rule(pick=PICK)
    def a_reservation_pod_is_lost(self, pick: int) -> None:
        group = self._one(self._groups(GroupState.READY), pick)
        self._kubelet(group).record.pop(group.pod_uid, None)
        assert lose_group(group.pk, "gone", now=self._now, actor=ACTOR)

    @precondition(lambda self: self._groups(GroupState.UNPROTECTED))
    @rule(pick=PICK)
    def a_new_reservation_pod_is_made(self, pick: int) -> None:
        """It protects the GPU again, or goes at once."""
        group = self._one(self._groups(GroupState.UNPROTECTED), pick)
        pod_uid = f"again-{uuid.UUID(int=self.random.getrandbits(128))}"
        kubelet = self._kubelet(group)
        note_pods({group.pk: pod_uid}, now=self._now, actor=ACTOR)
        if kubelet.admit(pod_uid, group.gpus, self.random) and set(kubelet.record[pod_uid]) == set(group.uuids):
            assert protect_group(group.pk, pod_uid=pod_uid, now=self._now, actor=ACTOR)
        else:
            kubelet.record.pop(pod_uid, None)
            put_off(group.pk, now=self._now)

    @precondition(lambda self: self._groups(GroupState.RELEASING))
    @rule(pick=PICK)
    def a_group_ends(self, pick: int) -> None:
        """Its reservation pod is gone."""
        group = self._one(self._groups(GroupState.RELEASING), pick)
        self._kubelet(group).record.pop(group.pod_uid, None)
        end_groups([group.pk], now=self._now, actor=ACTOR)

    @rule(node=st.sampled_from(sorted(NODES)))
    def the_record_is_told(self, node: str) -> None:
        """The agent reads it, and a comparison follows what it says of plain pods."""
        said = [
            CheckpointGrant(uid, "main", "nvidia.com/gpu", gpus) for uid, gpus in self.kubelets[node].record.items()
        ]
        checkpoint_put(node_name=node, entries=said, actor=SYSTEM, now=self._now)
        pods = {
            uid: Pod(metadata=ObjectMeta(name=uid, namespace="research", uid=uid), spec=PodSpec(node_name=where))
            for uid, where in self.plain.items()
        }
        correct_choices(pods=pods, given=grants_by_kubelets(), now=self._now)

    # what is always true

    @invariant()
    def nothing_is_given_twice(self) -> None:
        assert problems(leases=False) == []
        known = Counter(uuid for group in self._groups(*KNOWN) for uuid in group.uuids)
        assert [gpu for gpu, count in known.items() if count > 1] == []

    @invariant()
    def groups_have_their_gpus(self) -> None:
        """As many as they ask for; those that they were told; shares in shared ones, one holder in others."""
        has: dict[str, set[str]] = {}
        for device in Device.objects.exclude(gpu_group="").select_related("node"):
            has.setdefault(device.gpu_group, set()).add(device.uuid)
        groups = {group.name: group for group in self._groups(*GROUP_LIVE)}
        assert has.keys() == groups.keys()
        for name, group in groups.items():
            assert len(has[name]) == group.gpus, group
            assert {gpu.split("-")[1] for gpu in has[name]} == {group.node.name}
            if group.state in KNOWN:
                assert has[name] == set(group.uuids), group
        grants = AllocationDevice.objects.filter(live=True).select_related("device", "allocation")
        for grant in grants.exclude(device__gpu_group=""):
            assert groups[grant.device.gpu_group].shared is not grant.whole, grant  # type: ignore[union-attr]  # excluded
        for name, gpus in NODES.items():
            assert sum(group.gpus for group in groups.values() if group.node.name == name) <= gpus

    @invariant()
    def nobody_loses_what_was_known(self) -> None:
        """A bound share has the GPU of its group, and every group that is ready keeps its sharers' GPU."""
        for group in self._groups(GroupState.READY):
            assert set(self._kubelet(group).record.get(group.pod_uid, ())) == set(group.uuids), group

    @invariant()
    def no_group_is_kept_for_nobody(self) -> None:
        for group in self._groups(*HELD):
            held = AllocationDevice.objects.filter(device__gpu_group=group.name, device__node=group.node, live=True)
            assert held.exists(), group

    def teardown(self) -> None:
        """Everybody goes: every GPU is free, no group is left."""
        if not hasattr(self, "kubelets"):
            return
        for row in self._live():
            self._release(row)
        for group in self._groups(*GROUP_LIVE):
            assert group.state == GroupState.RELEASING, group
            self._kubelet(group).record.pop(group.pod_uid, None)
            end_groups([group.pk], now=self._now, actor=ACTOR)
        assert not Device.objects.exclude(core_used=0, memory_used=0, gpu_group="").exists()
        assert not any(kubelet.record for kubelet in self.kubelets.values())
        assert problems(leases=False) == []

    # how

    @property
    def _now(self) -> datetime:
        return database_now()

    def _held(self, request: DeviceRequest, node: str) -> uuid.UUID | None:
        look = fleet.current()
        decision = plan(look.snapshot, request, candidates=[look.snapshot.node_index[node]])
        if decision.node is None:
            return None
        name = f"pod-{self.random.getrandbits(64):x}"
        terms = ledger.Terms(holder=ledger.pod_holder("research", name, name), request=request)
        try:
            return ledger.hold(terms, decision=decision, previous=None, now=look.now, hold_seconds=30)
        except LostRace:
            return None

    def _runs(self, row: Allocation) -> None:
        """The pod is bound; its kubelet admits it, or it fails."""
        assert ledger.bound([row.pk], now=self._now)
        count = row.devices.filter(live=True).count()
        if self.kubelets[row.node.name].admit(row.pod_uid, count, self.random):
            self.plain[row.pod_uid] = row.node.name
        else:
            self._release(Allocation.objects.get(pk=row.pk))

    def _bind_sharers(self) -> None:
        """All reserved allocations whose groups are ready."""
        ready = {group.name for group in self._groups(GroupState.READY)}
        for row in Allocation.objects.filter(state=State.RESERVED):
            names = set(row.devices.filter(live=True).values_list("device__gpu_group", flat=True))
            if names and names <= ready:
                assert ledger.bound([row.pk], now=self._now)

    def _in_vain(self, group: GpuGroup) -> None:
        """The binds of all sharers fail, and the pod goes."""
        assert fail_group(group.pk, "in vain", now=self._now, actor=ACTOR)
        for row in self._sharers(group):
            self._release(row)

    def _sharers(self, group: GpuGroup) -> list[Allocation]:
        held = AllocationDevice.objects.filter(device__gpu_group=group.name, device__node=group.node, live=True)
        return list(Allocation.objects.filter(pk__in=held.values("allocation")))

    def _release(self, row: Allocation) -> None:
        names = set(row.devices.filter(live=True).values_list("device__gpu_group", flat=True))
        begun = ledger.begin_release(
            allocation_id=row.pk,
            sources=(State.RESERVED, State.BOUND),
            outcome=State.RELEASED,
            reason="test",
            now=self._now,
            actor=ACTOR,
        )
        assert begun
        assert ledger.finish_release(allocation_id=row.pk, outcome=State.RELEASED, now=self._now, actor=ACTOR)
        if self.plain.pop(row.pod_uid, ""):
            self.kubelets[row.node.name].record.pop(row.pod_uid, None)
        release_unused(names - {""}, spare=0, now=self._now, actor=ACTOR)

    def _kubelet(self, group: GpuGroup) -> Kubelet:
        return self.kubelets[group.node.name]

    @staticmethod
    def _groups(*states: GroupState) -> list[GpuGroup]:
        rows = GpuGroup.objects.filter(state__in=states).select_related("node")
        return list(rows.order_by("created_at", "pod_name"))

    @staticmethod
    def _live() -> list[Allocation]:
        return list(Allocation.objects.filter(state__in=LIVE).select_related("node").order_by("created_at", "pod_uid"))

    def _plain(self, state: State) -> list[Allocation]:
        return [row for row in self._live() if row.state == state and row.request.get("by_kubelet")]

    @staticmethod
    def _one(some: list[T], pick: int) -> T:
        return some[pick % len(some)]
