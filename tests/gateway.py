"""Ready slots and the steps of gateways, for tests of dispatch and of the gateway.

A slot is made by the loop's own rounds (`tests.slots`) and then told to be at an address. `Counter` gives arrivals
whose order is that of the calls.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Any

from inference.choices import RequestState, State
from inference.dispatch.records import Arrival, Ending, Place, Retry, Round, Step
from inference.dispatch.rounds import dispatch
from inference.models import Gateway, Request, Slot
from storage.clock import database_now
from tests.slots import SlotWorld

LENGTH = 1000


class Gateways:
    """What gateways do, without their processes. `steps` of one call are one round."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.ids: dict[str, uuid.UUID] = {}
        """Names of requests → ids."""

    def register(self, name: str = "g1") -> str:
        now = database_now()
        Gateway.objects.get_or_create(pk=name, defaults={"started_at": now, "seen_at": now})
        return name

    def arrival(self, name: str, model: str = "chat", **fields: Any) -> Arrival:
        pk = self.ids[name] = uuid.UUID(int=next(self._numbers))
        return Arrival(id=pk, model=model, at=float(next(self._numbers)), **fields)

    def ending(self, name: str, model: str = "chat", state: RequestState = RequestState.DONE, **fields: Any) -> Ending:
        return Ending(id=self.ids[name], model=model, state=state, at=float(next(self._numbers)), **fields)

    def again(self, name: str, slot: str, *before: str, model: str = "chat") -> Retry:
        at = float(next(self._numbers))
        return Retry(
            id=self.ids[name], model=model, slot=slot, reason="refused", tried=dict.fromkeys(before, at), at=at
        )

    def round(self, steps: Iterable[Step], *, gateway: str = "g1", length: int = LENGTH) -> Round:
        self.register(gateway)
        return dispatch(
            list(steps), gateway=gateway, now=database_now(), monotonic=float(next(self._numbers)), queue_length=length
        )

    def arrive(self, *names: str, gateway: str = "g1", **fields: Any) -> list[str]:
        """Each in a round of its own: the slot, or what became of it."""
        return [said(self.round([self.arrival(name, **fields)], gateway=gateway).outcomes[0]) for name in names]

    def end(self, name: str, **fields: Any) -> list[str]:
        """Names of the requests that the place went to."""
        done = self.round([self.ending(name, **fields)])
        return [self.name(one.request) for one in done.started]

    def name(self, pk: uuid.UUID) -> str:
        return next(name for name, known in self.ids.items() if known == pk)

    def states(self) -> dict[str, str]:
        rows = dict(Request.objects.values_list("pk", "state"))
        return {name: rows[pk] for name, pk in self.ids.items() if pk in rows}


def said(outcome: object) -> str:
    return outcome.slot if isinstance(outcome, Place) else str(outcome)


def ready_slots(world: SlotWorld, *addresses: str, model: str = "chat", lora: str = "") -> list[Slot]:
    """Ready slots of the model, one at each address."""
    slots = [slot for slot in world.ready(model, len(addresses), lora=lora) if slot.lora == lora]
    slots.sort(key=lambda slot: slot.pk)
    assert len(slots) == len(addresses)
    for slot, address in zip(slots, addresses, strict=True):
        Slot.objects.filter(pk=slot.pk).update(address=address)
    return slots


def miscounted() -> list[str]:
    """Slots whose count is not that of their running requests, or beyond what they serve at once."""
    found = []
    for slot in Slot.objects.exclude(state=State.STOPPED):
        running = Request.objects.filter(slot=slot, state=RequestState.RUNNING).count()
        if running != slot.active or slot.active > slot.launch["parallel"]:
            found.append(f"{slot}: {slot.active} counted, {running} run, {slot.launch['parallel']} may")
    return found
