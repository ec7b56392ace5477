"""A machine for Hypothesis over the slots' loop: requests, models, runners, pods and workers that die, in any order."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from allocations.models import Allocation
from allocations.scheduling.binder import release_now
from inference.choices import HOLDING, WANTED, RequestState, RunnerState, State
from inference.models import Model, Request, Runner, Slot
from inference.runner_liveness import notice_silent
from nodes.models import Device
from nodes.revisions import next_revision
from storage.clock import database_now
from tests import ledger_truth
from tests.databases import TestDatabase
from tests.deaths import Died
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory
from tests.integration.inference.deaths import SlotDeaths
from tests.slots import GI, SlotWorld, problems

NODES = ("n1", "n2")
MODELS = ("small", "large", "wide")
SIZE = 40
some_node = st.sampled_from(NODES)
some_model = st.sampled_from(MODELS)


class SlotsMachine(RuleBasedStateMachine):
    """Two runners of two GPUs each, three models that do not all fit."""

    database: ClassVar[TestDatabase]

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.pods = 0

    @initialize()
    def begin(self) -> None:
        self.database.fresh()
        self.deaths = SlotDeaths(self.patch)
        self.world = SlotWorld()
        GpuClaimFactory(name="half", spec={"devices": {"count": 1, "memory": "20Gi"}})
        for name in NODES:
            self.world.runner(name, gpus=2, memory=SIZE)
        for name in MODELS:
            self.make(name)

    def make(self, name: str) -> None:
        about: dict[str, dict[str, Any]] = {
            "small": {"memory": 10, "parallel": 2, "keep_warm": 1},
            "large": {"memory": 30, "runtime": "vllm"},
            "wide": {"memory": 60, "gpu_counts": [2]},
        }
        if not Model.objects.filter(name=name).exists():
            self.world.model(name, idle_seconds=60, **about[name])

    @rule(model=some_model, count=st.integers(1, 3))
    def ask(self, model: str, count: int) -> None:
        self.world.requests(model, count)

    @rule()
    def serve(self) -> None:
        """The gateway's part: each request that waits goes to a slot with room."""
        connected = Runner.objects.filter(state=RunnerState.CONNECTED).values("pk")
        for request in Request.objects.filter(state=RequestState.WAITING).order_by("arrived_at"):
            ready = Slot.objects.filter(model_name=request.model_name, state=State.READY, runner__in=connected)
            slot = next((one for one in ready if one.active < one.launch["parallel"]), None)
            if slot is not None:
                Slot.objects.filter(pk=slot.pk).update(active=slot.active + 1, last_used_at=database_now())
                Request.objects.filter(pk=request.pk).update(state=RequestState.RUNNING, slot=slot)

    @rule()
    def answer(self) -> None:
        """Running requests end."""
        running = Request.objects.filter(state=RequestState.RUNNING)
        for slot in Slot.objects.filter(pk__in=running.values("slot")):
            Slot.objects.filter(pk=slot.pk).update(active=0, last_used_at=database_now())
        running.update(state=RequestState.DONE, ended_at=database_now())

    @rule(seconds=st.sampled_from([30, 90, 700]))
    def wait(self, seconds: int) -> None:
        self.world.age(seconds)

    @rule()
    def turn(self) -> None:
        self.world.round()

    @rule(steps=st.integers(1, 12))
    def die(self, steps: int) -> None:
        """A worker dies after so many of its steps."""
        self.deaths.arm(steps)
        try:
            self.world.round()
        except Died:
            pass
        finally:
            self.deaths.rise()

    @rule(node=some_node)
    def obey(self, node: str) -> None:
        if Runner.objects.get(node__name=node).state == RunnerState.CONNECTED:
            self.world.obey(node)

    @rule(node=some_node)
    def crash(self, node: str) -> None:
        """A process ends by itself."""
        slot = Slot.objects.filter(node=node, state__in=(State.STARTING, State.READY)).first()
        if slot is not None and Runner.objects.get(node__name=node).state == RunnerState.CONNECTED:
            self.world.processes.get(node, set()).discard(slot.pk)
            self.world.report(slot, State.FAILED, reason="exit code 1")

    @rule(node=some_node, seconds=st.sampled_from([20, 100]))
    def silence(self, node: str, seconds: int) -> None:
        Runner.objects.filter(node__name=node).update(seen_at=database_now() - timedelta(seconds=seconds))
        notice_silent(now=database_now())

    @rule(node=some_node)
    def come_back(self, node: str) -> None:
        Runner.objects.filter(node__name=node).update(state=RunnerState.CONNECTED, seen_at=database_now())

    @rule(model=some_model)
    def forget(self, model: str) -> None:
        Model.objects.filter(name=model).delete()

    @rule(model=some_model)
    def change(self, model: str) -> None:
        self.make(model)
        found = Model.objects.get(name=model)
        Model.objects.filter(pk=found.pk).update(revision=found.revision + 1)

    @rule()
    def place_a_pod(self) -> None:
        self.pods += 1
        pod = pod_manifest(f"pod-{self.pods}", claim="half")
        node = filtered(pod, list(NODES))
        if node is not None:
            assert bound(pod, node) == ""

    @rule()
    def end_a_pod(self) -> None:
        pod = Allocation.objects.filter(state="bound").exclude(dialect="slot").first()
        if pod is not None:
            release_now(allocation_id=pod.pk, reason="it ended", now=database_now(), actor="test")

    @rule(node=some_node, minor=st.integers(0, 1))
    def sicken(self, node: str, minor: int) -> None:
        device = Device.objects.get(node__name=node, minor=minor)
        Device.objects.filter(pk=device.pk).update(healthy=not device.healthy, revision=next_revision())

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        assert ledger_truth.problems(leases=False) == []
        running: Counter[tuple[str, int]] = Counter()
        for slot in Slot.objects.filter(state__in=(State.STARTING, State.READY)).select_related("allocation"):
            assert slot.allocation is not None
            assert slot.allocation.state == "bound", "it runs in memory that it has"
            for minor, amount in zip(slot.gpus, slot.memory, strict=True):
                running[slot.node, minor] += amount
        for device in Device.objects.select_related("node"):
            pods = sum(
                device.grants.filter(live=True)
                .exclude(allocation__dialect="slot")
                .values_list("memory_bytes", flat=True)
            )
            assert running[device.node.name, device.minor] + pods <= SIZE * GI

    def teardown(self) -> None:
        """Whatever was before: everything is well again, and it all comes to rest."""
        self.patch.undo()
        if not hasattr(self, "world"):
            return
        Runner.objects.update(state=RunnerState.CONNECTED, seen_at=database_now())
        self.world.age(2_000)
        self.answer()
        self.world.converge(rounds=30)
        assert problems() == []
        assert ledger_truth.problems() == []
        for _, coming, reason in self.world.waiting():
            assert coming or reason or self._has_room(), "what waits has a reason, or a slot that is ready"
        Model.objects.all().delete()
        self.answer()
        self.world.converge(rounds=30)
        assert not Slot.objects.filter(state__in=HOLDING).exists()
        assert not Allocation.objects.filter(dialect="slot", state="bound").exists()

    def _has_room(self) -> bool:
        return Slot.objects.filter(state__in=WANTED).exists()
