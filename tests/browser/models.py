"""Models, a runner and slots for the pages: made of rows, planned by rounds without a cluster."""

from __future__ import annotations

from datetime import timedelta

from inference.choices import RequestState, State
from inference.models import Request, Slot
from storage.clock import database_now
from tests.slots import SlotWorld


def served() -> str:
    """Slots that are ready, one that waits for another to go, requests that wait and that were served; a slot's id."""
    world = SlotWorld()
    world.model("meta/llama-3-8b", memory=15, parallel=4, keep_warm=2)
    world.model("draw", memory=90, gpu_counts=[1])
    world.model("code", memory=36, runtime="vllm")
    world.runner("models-1", gpus=2, memory=40, disk=["meta/llama-3-8b"])
    world.ready("meta/llama-3-8b", 4)
    world.age(400)
    world.requests("code", 2)
    world.requests("draw", 3, lora="cats")
    world.round()
    now = database_now()
    for minute in range(1, 40):
        at = now - timedelta(minutes=minute)
        Request.objects.create(
            model_name="code",
            state=RequestState.DONE,
            arrived_at=at - timedelta(seconds=1 + minute % 7),
            started_at=at,
            ended_at=at,
            tokens=600 * (1 + minute % 5),
        )
    slot = Slot.objects.filter(state=State.READY).first()
    assert slot is not None
    Slot.objects.filter(pk=slot.pk).update(log_tail="\n".join(f"INFO layer {number} loaded" for number in range(30)))
    return slot.pk
