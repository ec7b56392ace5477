"""The machine of test_machine: everything that may happen to a cluster with gpuplane in it, one rule each, in any
order.

Users make pods, delete and replace them, change claims, and take devices over REST; kube-scheduler asks filter and bind
through the door; the API server fails, goes away, loses answers and applies requests late; processes die between any
two steps; collection and reconciling come early, late, and with a clock that was set back; nodes and devices come and
go.

After each rule no device is given twice, by the ledger or by what running pods were told. At the end of each history
faults end, late requests arrive, and collection comes: then ledger, Leases and annotations agree; everybody goes, and
everything is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from access.actors import SYSTEM
from access.errors import Conflict, DoesNotFit, NotFound, Unavailable
from allocations.choices import LIVE, State
from allocations.models import Allocation
from allocations.services import allocation_release, claim_devices
from claims.kinds import CLAIM
from claims.mirror import refresh
from claims.models import GpuClaim
from kube.keys import SCHEDULER_NAME
from nodes.models import Device
from nodes.services import devices_health
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.deaths import Deaths
from tests.door import Door, Failed
from tests.factories import DeviceFactory
from tests.fakes.apiserver import Fault
from tests.fakes.late import Late
from tests.integration.cluster.comparing import differences, given_twice
from tests.integration.cluster.conftest import NAMESPACE, World

T = TypeVar("T")
NODES = ("n1", "n2")
GPUS = 2
LEASES = "gpuplane-system"
CLAIMS: dict[str, dict[str, Any]] = {
    "one": {"count": 1},
    "two": {"count": 2},
    "half": {"count": 1, "core": 50, "memoryRatio": 50},
    "memory": {"count": 2, "memory": "30Gi"},
    "nic": {"count": 1, "type": "rdma", "core": 40},
    "brief": {"count": 1, "ttl": 60},
}
BINDING, LEASE, POD = r"/binding$", r"/leases", r"/pods/"
FAULTS = {
    "a Binding's answer is lost": Fault("POST", BINDING, drop="after"),
    "a Binding is cut off": Fault("POST", BINDING, drop="before"),
    "a Binding is applied, and called a failure": Fault("POST", BINDING, status=504, drop="after"),
    "a Binding fails inside": Fault("POST", BINDING, status=500),
    "a Binding is throttled": Fault("POST", BINDING, status=429),
    "a Binding conflicts": Fault("POST", BINDING, status=409),
    "a Binding is forbidden": Fault("POST", BINDING, status=403, reason="Forbidden"),
    "a Lease's answer is lost": Fault("POST", LEASE, drop="after"),
    "a Lease fails inside": Fault("POST", LEASE, status=500),
    "a Lease is forbidden": Fault("POST", LEASE, status=403, reason="Forbidden"),
    "a shared Lease conflicts": Fault("PUT", LEASE, status=409),
    "a Lease stays": Fault("DELETE", LEASE, status=500),
    "a deletion's answer is lost": Fault("DELETE", LEASE, drop="after"),
    "a pod cannot be read": Fault("GET", POD, status=500),
}
ALWAYS = 10_000
LATER = st.sampled_from([40.0, 120.0, 0.0, -5.0])
"""Seconds by which the clock of whoever collects is ahead: nothing waits, and a clock may be set back."""
PICK = st.integers(0, 4)
"""One of what there is, by its number."""


class ClusterMachine(RuleBasedStateMachine):
    """One history. `world`, `database` and `deaths` are set by the test that runs it."""

    world: World
    database: TestDatabase
    deaths: Deaths

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.count = 0
        self.asked: list[tuple[dict[str, Any], str]] = []
        self.late: list[Late] = []

    @property
    def pods(self) -> list[str]:
        """Those that are there, the newest last."""
        return [name for _, name in self.world.server.pods]

    @initialize()
    def begin(self) -> None:
        self.database.fresh()
        self.world.server.fresh()
        self.world.server.add_namespace(NAMESPACE)
        self.world.server.add_namespace(LEASES)
        for name in NODES:
            node = self.world.node(name, gpus=GPUS)
            DeviceFactory(node=node, type="rdma", minor=0, uuid=f"RDMA-{name}", model="", memory_bytes=0)
        for name in CLAIMS:
            self._make_claim(name)
        self.door = Door()
        self.door.__enter__()

    # users

    def a_pod_comes(self, claim: str) -> None:
        self.count += 1
        self._make_pod(f"pod-{self.count}", claim)

    @precondition(lambda self: self.pods)
    @rule(pick=PICK, how=st.sampled_from(["is deleted", "is replaced", "finishes", "is told to go"]))
    def a_pod_ends(self, pick: int, how: str) -> None:
        name = _one(self.pods, pick)
        if how == "finishes" and self.world.server.pods[NAMESPACE, name]["spec"].get("nodeName"):
            self.world.finish(name)
        elif how == "is told to go":
            self.world.server.store.evict(NAMESPACE, name, {})  # one that runs nowhere is gone at once
        else:
            self.world.remove(name)
            if how == "is replaced":
                self._make_pod(name, "one")

    def a_claim_goes_or_comes(self, claim: str) -> None:
        if not self.world.server.running:
            return
        kind = self.world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
        if (NAMESPACE, claim) in self.world.server.gpuclaims:
            self.world.server.store.delete(kind, NAMESPACE, claim, {})
            self._look_at_claim(claim)
        else:
            self._make_claim(claim)

    @rule(name=st.sampled_from(sorted(CLAIMS)))
    def a_client_takes_devices(self, name: str) -> None:
        claim = GpuClaim.objects.filter(name=name).first()
        if claim is None:
            return
        try:
            given = claim_devices(claim=claim, actor=SYSTEM)
        except (Conflict, DoesNotFit, NotFound, Unavailable):
            return
        assert given.state == State.BOUND

    def a_client_gives_them_back(self, pick: int) -> None:
        held = list(Allocation.objects.filter(state=State.BOUND, pod_uid="").order_by("created_at"))
        if held:
            self._release(_one(held, pick))

    # kube-scheduler

    @rule(claim=st.sampled_from(["", *sorted(CLAIMS)]), pick=PICK, nodes=st.sets(st.sampled_from(NODES), min_size=1))
    def a_pod_is_asked_for(self, claim: str, pick: int, nodes: set[str]) -> None:
        """A new one, or one that is there."""
        if claim or not self.pods:
            self.a_pod_comes(claim or "one")
            pick = len(self.pods) - 1
        name = _one(self.pods, pick)
        pod = dict(self.world.server.pods[NAMESPACE, name])
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return  # kube-scheduler asks for nobody who runs or goes
        chosen = self.door.filtered(pod, sorted(nodes))
        assert chosen is None or chosen in nodes
        if chosen is not None:
            self.asked.append((pod, chosen))

    @rule(claim=st.sampled_from(sorted(CLAIMS)))
    def a_pod_comes_and_is_bound(self, claim: str) -> None:
        """The way of most."""
        self.a_pod_is_asked_for(claim, 0, set(NODES))
        if self.asked and self.asked[-1][0]["metadata"]["name"] == self.pods[-1]:
            self._bind([self.asked.pop()])

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, together=st.booleans())
    def who_was_asked_for_is_bound(self, pick: int, together: bool) -> None:
        """One of them, or all at once."""
        if not together:
            self._bind([self.asked.pop(pick % len(self.asked))])
            return
        asked, self.asked = self.asked, []
        self._bind(asked)

    def a_pod_is_given_up(self, pick: int) -> None:
        if self.pods and not self.world.server.pods[NAMESPACE, _one(self.pods, pick)]["spec"].get("nodeName"):
            self.world.refuse(_one(self.pods, pick), at=database_now())

    # what fails

    @rule(fault=st.sampled_from(sorted(FAULTS)), times=st.sampled_from([1, 1, 1, 2, ALWAYS]))
    def the_api_server_fails(self, fault: str, times: int) -> None:
        self.world.server.faults.append(replace(FAULTS[fault], times=times))

    @rule(path=st.sampled_from([BINDING, LEASE]), times=st.integers(1, 3))
    def requests_are_on_the_way(self, path: str, times: int) -> None:
        """Their senders hear nothing; nobody knows when they arrive."""
        self.late.append(Late())
        self.world.server.faults.append(Fault("POST", path, late=self.late[-1], drop="before", times=times))

    @precondition(lambda self: self.world.server.running)
    @rule(claim=st.sampled_from(sorted(CLAIMS)))
    def a_binding_is_on_the_way(self, claim: str) -> None:
        """That of one pod, however often it is sent."""
        self.late.append(Late())
        fault = Fault("POST", BINDING, late=self.late[-1], drop="before", times=ALWAYS)
        self.world.server.faults.insert(0, fault)
        self.a_pod_comes_and_is_bound(claim)
        fault.times = 0

    @precondition(lambda self: self.late and self.world.server.running)
    @rule(pick=PICK)
    def late_ones_arrive(self, pick: int) -> None:
        late = self.late.pop(pick % len(self.late))
        late.release()
        self.world.server.faults[:] = [fault for fault in self.world.server.faults if fault.late is not late]

    @precondition(lambda self: self.world.server.running)
    @rule()
    def the_api_server_goes(self) -> None:
        """What it holds is lost: whoever waits in front of it, a load balancer say, is a server that holds."""
        if not any(late.held for late in self.late):
            self.world.server.stop()

    @precondition(lambda self: self.world.server.faults or not self.world.server.running)
    @rule()
    def it_comes_and_fails_no_more(self) -> None:
        self.world.server.faults[:] = [fault for fault in self.world.server.faults if fault.late is not None]
        if not self.world.server.running:
            self.world.server.start()

    @rule(pick=PICK, steps=st.integers(0, 6))
    def the_process_dies(self, pick: int, steps: int) -> None:
        """At rest, or within a bind after so many steps of it."""
        if self.asked and steps:
            pod, node = self.asked.pop(pick % len(self.asked))
            self.deaths.arm(steps)
            answers = self.door.bound_together([(pod, node)])
            assert isinstance(answers[0], Failed) or not self.deaths.dead
            self.deaths.rise()
        self.door.restart()

    # what mends

    @rule(later=LATER, who=st.sampled_from(["collection", "reconciling", "both"]))
    def somebody_comes_to_mend(self, later: float, who: str) -> None:
        if who != "reconciling":
            self.world.collect_garbage(later=later)
        if who != "collection":
            self.world.reconcile(later=later)

    # what else changes

    @rule(
        what=st.sampled_from(["a claim", "a client", "a refusal", "a node", "sick", "well", "a stranger"]),
        pick=PICK,
        claim=st.sampled_from(sorted(CLAIMS)),
        node=st.sampled_from(NODES),
    )
    def something_changes(self, what: str, pick: int, claim: str, node: str) -> None:
        """Each of these less often than what the reservation depends on."""
        changes: dict[str, Callable[[], None]] = {
            "a claim": lambda: self.a_claim_goes_or_comes(claim),
            "a client": lambda: self.a_client_gives_them_back(pick),
            "a refusal": lambda: self.a_pod_is_given_up(pick),
            "a node": lambda: self.a_node_goes_or_comes(node),
            "sick": lambda: self.health_changes(node, pick % GPUS, "Xid 79"),
            "well": lambda: self.health_changes(node, pick % GPUS, ""),
            "a stranger": lambda: self.a_stranger_takes_a_lease(node, pick % GPUS),
        }
        changes[what]()

    def a_node_goes_or_comes(self, name: str) -> None:
        if name not in self.world.server.nodes:
            self.world.server.add_node(name)
            return
        self.world.server.remove_node(name)
        for pod in [pod for pod in self.pods if self._runs_on(pod) == name]:
            self.world.remove(pod)

    def health_changes(self, name: str, minor: int, reason: str) -> None:
        devices_health(node_name=name, health={f"GPU-{name}-{minor}": reason}, actor=SYSTEM, now=database_now())

    def a_stranger_takes_a_lease(self, name: str, minor: int) -> None:
        if (LEASES, f"gpu-{name}-{minor}") not in self.world.server.leases:
            self.world.server.add_lease(f"gpu-{name}-{minor}", "stranger")

    # what holds

    @invariant()
    def no_device_is_given_twice(self) -> None:
        found = given_twice(self.world.server)
        self.broken = self.broken or bool(found)
        assert not found, found

    def teardown(self) -> None:
        """Faults end, and what was on its way arrives: all agree. Everybody goes: everything is free."""
        try:
            self._calm()
            if not self.broken:
                self._agree()
                self._leave()
        finally:
            self.door.__exit__(None, None, None)

    def _calm(self) -> None:
        server = self.world.server
        if not server.running:
            server.start()
        self.deaths.rise()
        for late in self.late:
            late.release()
        server.faults.clear()
        for name in NODES:
            if name not in server.nodes:
                server.add_node(name)
        for (namespace, name), lease in server.leases.items():
            if lease["spec"]["holderIdentity"] == "stranger":
                server.store.delete(_kind(server, "coordination.k8s.io", "leases"), namespace, name, {})

    def _agree(self) -> None:
        self.no_device_is_given_twice()
        self._mend(120, 240, 360)
        self._no_differences()

    def _leave(self) -> None:
        for name in self.pods:
            self.world.remove(name)
        for allocation in Allocation.objects.filter(state=State.BOUND, pod_uid=""):
            self._release(allocation)
        self._mend(480, 600)
        self._no_differences()
        assert not Allocation.objects.filter(state__in=LIVE).exists()
        assert not Device.objects.exclude(core_used=0, memory_used=0).exists()
        assert self.world.leases() == {}

    # helpers

    def _mend(self, *moments: float) -> None:
        for later in moments:
            self.world.collect_garbage(later=later)
            problem = self.world.reconcile(later=later).problem
            assert not problem, problem

    def _no_differences(self) -> None:
        found = differences(self.world.server)
        assert not found, found

    def _bind(self, asked: list[tuple[dict[str, Any], str]]) -> None:
        for (pod, node), error in zip(asked, self.door.bound_together(asked), strict=True):
            assert not isinstance(error, Failed), "the door answers whatever happens"
            stored = self.world.server.pods.get((NAMESPACE, pod["metadata"]["name"]))
            if error == "" and stored is not None and stored["metadata"]["uid"] == pod["metadata"]["uid"]:
                assert stored["spec"].get("nodeName") == node, "bound is bound"

    def _make_pod(self, name: str, claim: str) -> None:
        self.world.pod(name, claim=claim, spec={"schedulerName": SCHEDULER_NAME})

    def _make_claim(self, name: str) -> None:
        self.world.claim(name, **CLAIMS[name])
        self._look_at_claim(name)

    def _look_at_claim(self, name: str) -> None:
        cluster = self.world.backends.cluster
        assert cluster is not None
        refresh(CLAIM, cluster, namespace=NAMESPACE, name=name, now=database_now())

    def _release(self, allocation: Allocation) -> None:
        try:
            allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=database_now())
        except (Conflict, Unavailable):
            return  # it is being released already, or the API server is away: collection goes on

    def _runs_on(self, name: str) -> str:
        return str(self.world.server.pods[NAMESPACE, name]["spec"].get("nodeName", ""))


def _one(there: list[T], pick: int) -> T:
    return there[pick % len(there)]


def _kind(server: Any, group: str, plural: str) -> Any:
    return server.store.kind_of(group, "v1", plural)
