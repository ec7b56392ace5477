"""What Prometheus is told of slots: gauges from the rows, counters after the commit."""

from __future__ import annotations

from datetime import timedelta

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks

from inference.choices import RunnerState, State
from inference.metrics import slot_metrics
from inference.models import Runner, Slot
from storage.clock import database_now
from tests.slots import GI, SlotWorld


def gauges() -> dict[tuple[str, ...], float]:
    """(metric, values of its labels) → value."""
    families = list(text_string_to_metric_families(slot_metrics(now=database_now())))
    assert {family.type for family in families} == {"gauge"}
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_gauges(world: SlotWorld, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    """SLOT-1b slots by state, their memory, runners by state and who waits, in four queries."""
    world.model("chat", memory=30)
    world.model("other", memory=100)
    world.runner(memory=40)
    world.ready("chat")
    world.runner("n2")
    Runner.objects.filter(node__name="n2").update(state=RunnerState.SILENT)
    world.requests("other", 2)
    world.requests("other", arrived_at=database_now() - timedelta(seconds=90))
    now = database_now()
    with django_assert_num_queries(4):
        text = slot_metrics(now=now)
    found = gauges()
    assert text.count("# TYPE") == 5
    assert found["gpuplane_slots", "chat", "ready"] == 1
    assert found["gpuplane_slots", "other", "ready"] == found["gpuplane_slots", "chat", "failed"] == 0
    assert found["gpuplane_slot_memory_bytes", "chat"] == 30 * GI
    assert found["gpuplane_slot_memory_bytes", "other"] == 0
    assert [found["gpuplane_runners", state] for state in ("connected", "silent", "failed")] == [1, 1, 0]
    assert (found["gpuplane_inference_queued", "other"], found["gpuplane_inference_queued", "chat"]) == (3, 0)
    assert 90 <= found["gpuplane_inference_queued_longest_seconds", "other"] < 120
    assert found["gpuplane_inference_queued_longest_seconds", "chat"] == 0


def test_nothing_yet(world: SlotWorld) -> None:
    """Without models there are states of runners, and no other line."""
    assert set(gauges()) == {("gpuplane_runners", state.value) for state in RunnerState}


def test_slots_of_a_model_that_was_deleted(world: SlotWorld) -> None:
    """What they hold is told until they are gone."""
    world.model("chat", memory=30).delete()
    now = database_now()
    place = {"node": "n1", "gpus": [0, 1], "memory": [GI, 2 * GI], "planned_at": now, "changed_at": now}
    Slot.objects.create(id="s1", model_name="chat", model_revision=1, state=State.FAILED, **place)
    found = gauges()
    assert found["gpuplane_slots", "chat", "failed"] == 1
    assert found["gpuplane_slot_memory_bytes", "chat"] == 3 * GI


def test_counters(world: SlotWorld, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> None:
    """SLOT-5b each move once, and how long a start took; the evicted slot counts for its own model."""
    world.model("evictee", memory=30)
    world.model("newcomer", memory=30)
    world.runner(memory=40)
    world.ready("evictee")
    assert counted("gpuplane_slot_moves_total", model="evictee", state="ready") == 0, "not before the commit"
    with django_capture_on_commit_callbacks(execute=True):
        world.age(100)
        world.requests("newcomer")
        world.converge()
    assert counted("gpuplane_slots_evicted_total", model="evictee") == 1
    assert counted("gpuplane_slot_moves_total", model="evictee", state="stopped") == 1
    assert counted("gpuplane_slot_moves_total", model="newcomer", state="ready") == 1
    assert counted("gpuplane_slot_start_seconds_count", model="newcomer") == 1
    assert counted("gpuplane_slots_evicted_total", model="newcomer") == 0
