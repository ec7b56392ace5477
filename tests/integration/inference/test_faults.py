"""What goes wrong around slots, and how rounds put it right: models deleted or changed, nodes, GPUs, memory and runners
that go, runtimes that fail.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from pytest_django import Settings

from allocations.choices import LIVE
from allocations.models import Allocation
from inference.choices import RunnerState, State
from inference.models import Model, Runner, Slot
from inference.rounds.failures import BACK_OFF, read_failures
from inference.rounds.tidying import tidy
from inference.runner_liveness import notice_silent
from nodes.models import Device, Node
from storage.clock import database_now
from tests import ledger_truth
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory
from tests.integration.inference.conftest import all_is_well
from tests.slots import SlotWorld


def waiting_for_memory(world: SlotWorld) -> None:
    """A slot of `chat` is planned where one of `old` drains, on the only GPU."""
    world.model("old", memory=30)
    world.model("chat", memory=30)
    world.runner(memory=40)
    world.ready("old")
    world.age(100)
    world.requests("chat")
    world.round()


def change(**fields: object) -> Callable[[SlotWorld], None]:
    def do(world: SlotWorld) -> None:
        Model.objects.update(**fields)

    return do


def delete(world: SlotWorld) -> None:
    Model.objects.all().delete()


def node_gone(world: SlotWorld) -> None:
    Node.objects.update(state="gone")


def gpu_gone(world: SlotWorld) -> None:
    Device.objects.update(presence="vanished")


def memory_gone(world: SlotWorld) -> None:
    from allocations.scheduling.binder import release_now

    allocation = Allocation.objects.get(state="bound")
    assert release_now(allocation_id=allocation.pk, reason="test", now=database_now(), actor="test")


@pytest.mark.parametrize(
    ("event", "want", "reason"),
    [
        pytest.param(delete, "draining", "model chat was deleted", id="the model is deleted"),
        pytest.param(change(revision=2), "draining", "model chat was changed", id="the model is changed"),
        pytest.param(change(idle_seconds=5), "ready", "", id="a change that its slots do not run by"),
        pytest.param(node_gone, "stopped", "node n1 is gone", id="the node is gone"),
        pytest.param(gpu_gone, "failed", "a GPU of it is not there any more", id="a GPU leaves"),
        pytest.param(memory_gone, "failed", "its memory was taken back", id="its memory was released"),
    ],
)
def test_what_happens_to_a_ready_slot(
    world: SlotWorld, event: Callable[[SlotWorld], None], want: str, reason: str
) -> None:
    """SLOT-2 slots of models deleted or changed, of nodes and GPUs gone are removed; nothing else is."""
    world.model()
    world.runner()
    (slot,) = world.ready()
    event(world)
    world.round()
    slot.refresh_from_db()
    assert (slot.state, slot.reason) == (want, reason)
    if want != "ready":
        world.converge()
        slot.refresh_from_db()
        assert slot.state == State.STOPPED
        assert world.used() == [0]
        assert ledger_truth.problems() == []


@pytest.mark.parametrize(
    ("event", "want"),
    [
        pytest.param(delete, "stopped", id="the model is deleted"),
        pytest.param(node_gone, "stopped", id="the node is gone"),
        pytest.param(
            lambda world: Runner.objects.update(state=RunnerState.FAILED), "stopped", id="the runner has failed"
        ),
    ],
)
def test_what_happens_to_a_slot_that_waits_for_memory(
    world: SlotWorld, event: Callable[[SlotWorld], None], want: str
) -> None:
    """SLOT-2 a slot that nobody was told of is gone at once."""
    waiting_for_memory(world)
    new = Slot.objects.get(model_name="chat")
    assert (new.state, new.allocation) == (State.PLANNED, None)
    event(world)
    world.round()
    new.refresh_from_db()
    assert new.state == want


def test_an_evicted_slot_whose_process_does_not_end(world: SlotWorld, settings: Settings) -> None:
    """SLOT-2 SLOT-5b who waits for its memory is planned anew after a while: here elsewhere, there with its reason."""
    settings.GPUPLANE_SLOT_START_SECONDS, settings.GPUPLANE_SLOT_DRAIN_SECONDS = 100, 50
    waiting_for_memory(world)
    world.age(149)
    world.round()
    assert world.slots() == [("old", "n1", [0], "draining"), ("chat", "n1", [0], "planned")]
    world.age(2)
    world.round()
    assert Slot.objects.get(state=State.STOPPED).reason == "its memory was not free within 150 s"
    assert world.waiting() == [("chat", False, "no GPU has 30Gi free; best n1/0 with 10Gi")]
    world.runner("n2", memory=40)
    world.round()
    assert world.slots() == [("old", "n1", [0], "draining"), ("chat", "n2", [0], "planned")]
    all_is_well()


def test_memory_that_is_held_is_not_waited_for(world: SlotWorld) -> None:
    """SLOT-2 a slot whose bind is under way is not ended for want of memory."""
    world.model(memory=30)
    world.runner(memory=40)
    world.requests()
    world.round()
    Allocation.objects.update(state="reserved", bound_at=None)
    world.age(100_000)
    assert tidy(now=database_now()) == 0
    Slot.objects.update(allocation=None)
    assert tidy(now=database_now()) == 1
    assert Slot.objects.get().reason.startswith("its memory was not free within")


def test_a_runtime_that_never_gets_ready(world: SlotWorld) -> None:
    """SLOT-2 the slot fails, stops, and its model is put off for longer each time; the requests say why."""
    world.model()
    world.runner(memory=40)
    world.requests()
    for attempt, pause in enumerate(BACK_OFF[:3], start=1):
        world.round()
        (slot,) = Slot.objects.filter(state=State.PLANNED)
        assert slot.attempt == attempt
        world.report(slot, State.STARTING)
        world.age(601)
        world.round()
        slot.refresh_from_db()
        assert (slot.state, slot.reason) == (State.FAILED, "it was not ready within 600 s")
        world.obey()
        world.round()
        assert world.slots() == []
        assert world.waiting()[0][2].startswith(f"slots of it failed {attempt} times in a row"), "put off"
        world.age(pause.total_seconds() - 2)
        world.round()
        assert world.slots() == []
        world.age(2)
    world.round()
    assert [state for *_, state in world.slots()] == ["planned"]


@pytest.mark.parametrize(
    ("newer_is_ready", "want"),
    [pytest.param(False, True, id="the only one"), pytest.param(True, False, id="a newer one serves")],
)
def test_a_slot_that_fails_hours_after_it_was_planned(world: SlotWorld, newer_is_ready: bool, want: bool) -> None:
    """SLOT-2 its failure counts as that of any other; a model is put off by its newest slot."""
    world.model(keep_warm=1)
    world.runner(gpus=2)
    world.converge()
    first = Slot.objects.get()
    world.age(1)
    if newer_is_ready:
        Model.objects.update(keep_warm=2)
        world.converge()
    world.age(3 * 3600)
    world.report(first, State.FAILED, reason="exit 1")
    world.obey()
    assert bool(read_failures(database_now())) == want


def test_a_change_of_the_model_forgives(world: SlotWorld) -> None:
    """SLOT-2 failures belong to the model as it was."""
    world.model()
    world.runner()
    world.requests()
    world.round()
    world.report(Slot.objects.get(), State.FAILED, reason="no such file")
    world.obey()
    world.round()
    assert world.slots() == []
    Model.objects.update(revision=2)
    world.round()
    assert Slot.objects.get(state=State.PLANNED).attempt == 1


@pytest.mark.parametrize(
    ("silent", "state", "slot_state"),
    [
        pytest.param(14, "connected", "ready", id="a moment"),
        pytest.param(16, "silent", "ready", id="15 s: silent"),
        pytest.param(61, "failed", "failed", id="60 s: failed, and its slots"),
    ],
)
def test_silent_runners(world: SlotWorld, silent: int, state: str, slot_state: str) -> None:
    """SLOT-2 silent for 15 s: no new requests; 60 s: failed, and the memory counts on."""
    world.model()
    world.runner("n1", memory=40)
    world.runner("n2", memory=40)
    (slot,) = world.ready()
    assert slot.node == "n1"
    Runner.objects.filter(node__name="n1").update(seen_at=database_now() - timedelta(seconds=silent))
    notice_silent(now=database_now())
    notice_silent(now=database_now())
    slot.refresh_from_db()
    assert (Runner.objects.get(node__name="n1").state, slot.state) == (state, slot_state)
    world.requests()
    world.round()
    assert world.used("n1") == [10], "its process may still run"
    assert bool(Slot.objects.filter(node="n2").exists()) == (state != "connected"), "requests go elsewhere"
    if state == "failed":
        Runner.objects.update(state=RunnerState.CONNECTED)
        world.obey()
        world.round()
        assert world.used("n1") == [0], "the runner is back and says that it is gone"
    all_is_well()


def test_silence_counts_while_somebody_listens(world: SlotWorld) -> None:
    """SLOT-2 a control plane that was away takes no runner for silent."""
    world.runner()
    Runner.objects.update(seen_at=database_now() - timedelta(minutes=5))
    notice_silent(now=database_now(), listening_since=database_now() - timedelta(seconds=5))
    assert Runner.objects.get().state == RunnerState.CONNECTED


def test_kept_warm_is_not_replaced_while_its_runner_is_silent(world: SlotWorld) -> None:
    """SLOT-2 a silence of seconds starts no model anew that nobody asks for."""
    world.model(keep_warm=1)
    world.runner("n1")
    world.runner("n2")
    world.converge()
    Runner.objects.filter(node__name="n1").update(state=RunnerState.SILENT)
    world.round()
    assert world.slots() == [("chat", "n1", [0], "ready")]


def test_others_took_the_memory_first(world: SlotWorld) -> None:
    """SLOT-1b a pod gets what an eviction freed: the slot is planned anew, here nowhere, with its reason."""
    world.model("old", memory=30)
    world.model("new", memory=30)
    world.runner(memory=40)
    world.ready("old")
    world.age(100)
    world.requests("new")
    world.round()
    world.obey()
    from inference.rounds.memory import return_memory

    return_memory(now=database_now())
    GpuClaimFactory(name="all")
    pod = pod_manifest("quick", claim="all")
    assert bound(pod, filtered(pod, ["n1"]) or "") == ""
    world.round()
    assert world.slots() == []
    assert world.waiting() == [("new", False, "no GPU has 30Gi free; best n1/0 with 0")]
    assert Slot.objects.get(model_name="new").reason == "GPU 0 of n1 has not so much memory free any more"
    all_is_well()


def test_orphaned_memory_comes_back(world: SlotWorld) -> None:
    """SLOT-2 memory in the ledger whose slot's row is gone is free after a round."""
    world.model()
    world.runner()
    world.ready()
    Slot.objects.all().delete()
    world.round()
    assert not Allocation.objects.filter(state__in=LIVE).exists()
    assert world.used() == [0]


def test_a_model_that_is_made_again(world: SlotWorld) -> None:
    """SLOT-2 under its name, and with revision 1 again: what failed is forgotten with the model that was deleted."""
    world.runner(gpus=1, memory=40)
    world.model(args=["--wrong"])
    world.requests()
    for number in range(4):
        world.age(100 if number else 0)
        world.round()
        slot = Slot.objects.get(state=State.PLANNED)
        for state in (State.STARTING, State.FAILED, State.STOPPED):
            world.report(slot, state, reason="exit 1" if state == State.FAILED else "")
        world.round()
    assert "failed 4 times" in next(iter(read_failures(database_now()).values())).text
    Model.objects.get(name="chat").delete()
    world.round()
    made = world.model(args=[])
    assert made.revision == 1
    world.round()
    assert Slot.objects.filter(state=State.PLANNED, model=made).exists(), world.waiting()
