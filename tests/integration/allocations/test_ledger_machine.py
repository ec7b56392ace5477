"""Whatever happens to the ledger, in whatever order: nothing is given twice, nothing is lost.

A Hypothesis state machine drives the real extender, ledger, leases and collector on both databases:
pods arrive, are bound, end; holds expire; binds break between steps; processes forget their picture;
devices fall ill and vanish; strangers hold leases.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from access.actors import SYSTEM
from allocations import fleet, ledger, saga, services
from allocations.choices import LIVE, State
from allocations.models import Allocation, Lease
from allocations.outside import outside
from allocations.sweep import sweep
from nodes.models import Device
from nodes.services import devices_health
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import DeviceFactory, GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems

NODES = ("node-a", "node-b", "node-c")
CLAIMS: dict[str, dict[str, Any]] = {
    "one": {"devices": {"count": 1}},
    "three": {"devices": {"count": 3, "policy": "contiguous"}},
    "half": {"devices": {"count": 1, "core": 50, "memoryRatio": 50}},
    "memory": {"devices": {"count": 2, "memory": "30Gi"}},
    "core": {"devices": {"count": 1, "core": 30}},
    "nic": {"devices": {"count": 1, "type": "rdma", "core": 40}},
    "brief": {"devices": {"count": 1}, "ttlSeconds": 60},
}
LATER = timedelta(hours=1)


class Broken(Exception):
    """A process died, as far as the ledger can tell."""


class LedgerMachine(RuleBasedStateMachine):
    """The world of one example. `database` is set by the test that runs it."""

    database: TestDatabase

    pods = Bundle("pods")
    chosen = Bundle("chosen")
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.database.fresh()
        for name in NODES:
            node = NodeFactory(name=name, gpus=4)
            DeviceFactory(node=node, type="rdma", minor=0, uuid=f"RDMA-{name}", model="", memory_bytes=0)
        for name, spec in CLAIMS.items():
            GpuClaimFactory(name=name, spec=spec)
        self.count = 0

    def teardown(self) -> None:
        """Everything ends, time passes, the collector runs: then nothing is held."""
        Lease.objects.filter(holder_identity__startswith="stranger").delete()
        later = datetime.now(UTC) + LATER
        for _ in range(3):
            sweep(now=later, world=outside())
        for allocation in Allocation.objects.filter(state=State.BOUND):
            services.allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=later)
        assert not problems()
        assert not Allocation.objects.filter(state__in=LIVE).exists()
        assert not Device.objects.exclude(core_used=0, memory_used=0).exists()
        assert not Lease.objects.exists()

    @rule(target=pods, claim=st.sampled_from(sorted(CLAIMS)))
    def arrive(self, claim: str) -> dict[str, Any]:
        self.count += 1
        return pod_manifest(f"pod-{self.count}", claim=claim)

    @rule(target=chosen, pod=pods, nodes=st.sets(st.sampled_from(NODES), min_size=1))
    def ask(self, pod: dict[str, Any], nodes: set[str]) -> tuple[dict[str, Any], str | None]:
        node = filtered(pod, sorted(nodes))
        assert node is None or node in nodes
        assert filtered(pod, sorted(nodes)) == node, "the same question twice gets the same answer"
        return pod, node

    @rule(target=running, asked=consumes(chosen))
    def bind(self, asked: tuple[dict[str, Any], str | None]) -> dict[str, Any]:
        pod, node = asked
        if node is not None:
            error = bound(pod, node)
            has = Allocation.objects.filter(pod_uid=pod["metadata"]["uid"], state=State.BOUND, node__name=node).exists()
            assert has == (error == ""), "bind says what became of it"
        return pod

    @rule(asked=consumes(chosen), step=st.integers(0, len(saga.BIND_STEPS) - 1))
    def bind_breaks(self, asked: tuple[dict[str, Any], str | None], step: int) -> None:
        pod, node = asked
        if node is None:
            return

        def die(_: object) -> None:
            raise Broken

        steps = (*saga.BIND_STEPS[:step], die)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saga, "BIND_STEPS", steps)
            with contextlib.suppress(Broken):
                bound(pod, node)

    @rule(pod=running)
    def end(self, pod: dict[str, Any]) -> None:
        for allocation in Allocation.objects.filter(pod_uid=pod["metadata"]["uid"], state=State.BOUND):
            services.allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=datetime.now(UTC))

    @rule(pod=running)
    def end_breaks(self, pod: dict[str, Any]) -> None:
        def die(*_: object, **__: object) -> None:
            raise Broken

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger, "finish_release", die)
            with contextlib.suppress(Broken):
                self.end(pod)

    @rule()
    def time_passes(self) -> None:
        sweep(now=datetime.now(UTC) + timedelta(minutes=2), world=outside())

    @rule()
    def process_restarts(self) -> None:
        fleet.FLEET.forget()

    @rule(node=st.sampled_from(NODES), minor=st.integers(0, 3), reason=st.sampled_from(["", "Xid 79"]))
    def health(self, node: str, minor: int, reason: str) -> None:
        devices_health(node_name=node, health={f"GPU-{node}-{minor}": reason}, actor=SYSTEM, now=datetime.now(UTC))

    @rule(node=st.sampled_from(NODES), minor=st.integers(0, 3))
    def stranger(self, node: str, minor: int) -> None:
        Lease.objects.get_or_create(
            name=f"gpu-{node}-{minor}",
            defaults={
                "holder_identity": "stranger/x/y",
                "node": node,
                "device_uuid": f"GPU-{node}-{minor}",
                "acquired_at": datetime.now(UTC),
            },
        )

    @invariant()
    def nothing_is_given_twice_or_lost(self) -> None:
        assert not problems()


def test_any_history_keeps_the_ledger_whole(ledger_db: TestDatabase) -> None:
    """LEASE-2 LEASE-3 CLAIM-2 no order of arrivals, ends, failures and restarts gives a device twice or loses one."""
    machine = type("Machine", (LedgerMachine,), {"database": ledger_db})
    examples, steps = (40, 30) if ledger_db.vendor == "sqlite" else (20, 25)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
