"""Reads the slots that a runner is to run, and stores what runners report.

Called by `inference.runner_socket` in a database thread: at the start of a session, for each report, and for each read
of the desired slots. Invariants:
- Of two runners that name the same node, the one that is still heard stays. Of two sessions of one runner, the
  newer one is current; only the current session changes rows.
- A slot is sent to its runner once its memory is bound. Its memory is freed only when its own runner reports that the
  process is gone (`stopped`).
- What is sent fits into a frame. A slot that has no room there fails, and none that was sent before is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from django.conf import settings

from access.errors import Conflict, NotFound
from allocations.choices import State as AllocationState
from allocations.models import AllocationDevice
from inference.choices import UNWANTED, WANTED, RunnerState, State
from inference.launch import Launch
from inference.models import Runner, Slot
from inference.runner_liveness import SILENT
from inference.transitions import runner_moved, slot_moved
from inference.wake import wake_slots
from nodes.choices import NodeState
from nodes.models import Device, Node
from runner.protocol import DESIRED_LIMIT, MOST_SLOTS, DesiredSlot, Gpu, Hello, Offer, SlotReport, encode_slot
from storage.transactions import atomic_retry

GRACE_SECONDS: Final = 10.0
SEEN_AGAIN: Final = timedelta(seconds=2)
"""A runner that was heard so short a time ago is not written anew."""
ACTOR: Final = "runner"
LOST: Final = "its runner does not have it any more"
RUNNING_BYTES: Final = DESIRED_LIMIT - MOST_SLOTS * 64
"""Of a frame: what is to run. The rest is for ids of slots that end, and of logs."""
NO_ROOM: Final = f"what its runner is to run has more than {DESIRED_LIMIT} bytes with its arguments"


class Superseded(Conflict):
    """A newer session of this runner counts."""


class Taken(Conflict):
    """Another program of the node's name is connected."""


@atomic_retry
def session_begin(*, hello: Hello, now: datetime) -> int:
    """Number of the new session. Raises NotFound for a node that is not known, and Taken."""
    node = Node.objects.filter(name=hello.node).exclude(state=NodeState.GONE).first()
    if node is None:
        raise NotFound(f"node {hello.node} is not known yet")
    values = {"version": hello.version, "address": hello.host, "boot": hello.instance, "seen_at": now}
    found = Runner.objects.select_for_update(of=("self",)).select_related("node").filter(node=node).first()
    if found is None:
        runner, is_new = Runner.objects.get_or_create(
            node=node,
            defaults={**values, "session": 1, "state": RunnerState.FAILED, "registered_at": now, "changed_at": now},
        )
        if is_new:
            runner_moved(runner, RunnerState.CONNECTED, now=now, actor=ACTOR)
            return 1
        found = Runner.objects.select_for_update(of=("self",)).select_related("node").get(pk=runner.pk)
    if found.boot not in {"", hello.instance} and _is_heard(found, now):
        raise Taken(f"another runner of {hello.node} is connected; it was heard {_ago(found, now)} s ago")
    session = found.session + 1
    Runner.objects.filter(pk=found.pk).update(**values, session=session, changed_at=now)
    if found.state != RunnerState.CONNECTED:
        runner_moved(found, RunnerState.CONNECTED, now=now, actor=ACTOR)
    return session


@atomic_retry
def offer_put(*, node: str, session: int, offer: Offer, now: datetime) -> None:
    """Store what the runner's slots can be. Raises Superseded."""
    runner = _counting(node, session)
    values = {"runtimes": offer.runtimes, "models_on_disk": offer.sources}
    if (runner.runtimes, runner.models_on_disk) != (offer.runtimes, offer.sources):
        Runner.objects.filter(pk=runner.pk).update(**values, changed_at=now)
        wake_slots()


@atomic_retry
def report_put(*, node: str, session: int, slots: Sequence[SlotReport], now: datetime) -> int:
    """Move slots to where the runner says that they are; how many moved. Raises Superseded."""
    runner = _counting(node, session)
    if runner.seen_at < now - SEEN_AGAIN or runner.state != RunnerState.CONNECTED:
        Runner.objects.filter(pk=runner.pk).update(seen_at=now)
    if runner.state != RunnerState.CONNECTED:
        runner_moved(runner, RunnerState.CONNECTED, now=now, actor=ACTOR)
    said = {one.id: one for one in slots}
    return sum(_follow(slot, said.get(slot.pk), now) for slot in _slots_of(runner))


def runner_heard(*, node: str, session: int, now: datetime) -> bool:
    """Note that the runner was heard, and nothing else; False where its session does not count, or it was silent."""
    rows = Runner.objects.filter(node__name=node, session=session, state=RunnerState.CONNECTED)
    return bool(rows.update(seen_at=now))


def desired(*, node: str, session: int, now: datetime) -> list[DesiredSlot]:
    """All that the runner is to run, and what is to end; in the order of planning, what is to end first.

    Raises Superseded.
    """
    runner = Runner.objects.filter(node__name=node).first()
    if runner is None or runner.session != session:
        raise Superseded(f"another session of the runner of {node} has begun")
    rows = list(_slots_of(runner))
    bound = [slot for slot in rows if slot.state in WANTED and _is_bound(slot)]
    gpus = _gpus_of(bound)
    ending = [_ending(slot, now) for slot in rows if slot.state in UNWANTED]
    complete = [slot for slot in bound if len(gpus[slot.pk]) == len(slot.gpus)]
    running = {slot.pk: _running(slot, gpus[slot.pk]) for slot in complete}
    finishing = sum(len(encode_slot(one)) for one in ending if one.run)
    for slot in _without_room(complete, running, RUNNING_BYTES - finishing):
        _refuse(slot, now)
        del running[slot.pk]
    return [*ending, *running.values()][:MOST_SLOTS]


def _without_room(slots: Sequence[Slot], running: Mapping[str, DesiredSlot], room: int) -> list[Slot]:
    """Planned slots for which `room` bytes do not suffice. Those that were sent before keep their place."""

    def rank(slot: Slot) -> tuple[bool, datetime]:
        bound_at = None if slot.allocation is None else slot.allocation.bound_at
        return slot.state == State.PLANNED, bound_at or slot.planned_at

    found = []
    for slot in sorted(slots, key=rank):
        room -= (size := len(encode_slot(running[slot.pk])))
        if room < 0 and slot.state == State.PLANNED:
            room += size
            found.append(slot)
    return found


@atomic_retry
def _refuse(slot: Slot, now: datetime) -> bool:
    return slot_moved(slot, State.FAILED, now=now, reason=NO_ROOM)


def _counting(node: str, session: int) -> Runner:
    """The runner, locked, where this session is the one that counts. Raises Superseded."""
    rows = Runner.objects.select_for_update(of=("self",)).select_related("node")
    runner = rows.filter(node__name=node).first()
    if runner is None or runner.session != session:
        raise Superseded(f"another session of the runner of {node} has begun")
    return runner


def _slots_of(runner: Runner) -> Iterable[Slot]:
    rows = Slot.objects.filter(runner=runner, state__in=(*WANTED, *UNWANTED)).select_related("allocation")
    return rows.order_by("planned_at", "pk")


def _follow(slot: Slot, said: SlotReport | None, now: datetime) -> bool:
    """One slot, as the runner has it; None: it does not. Whether it moved."""
    if said is None:
        lost = slot.state in (State.STARTING, State.READY)
        return lost and slot_moved(slot, State.FAILED, now=now, reason=LOST, actor=ACTOR)
    if slot.state in UNWANTED:
        if said.state not in ("stopped", "failed"):
            return False
        lines = said.lines or slot.log_tail
        return slot_moved(slot, State.STOPPED, now=now, actor=ACTOR, reason=_reason(slot, said), log_tail=lines)
    if not _is_bound(slot):
        return False  # it was never told to run this one
    if said.state == "starting":
        return slot_moved(slot, State.STARTING, now=now, actor=ACTOR)
    if said.state == "ready" and slot.state == State.READY:
        if said.address and said.address != slot.address:
            Slot.objects.filter(pk=slot.pk).update(address=said.address, changed_at=now)
        return False
    if said.state == "ready" and said.address:
        return slot_moved(slot, State.READY, now=now, actor=ACTOR, address=said.address)
    # it stops though it shall run, or has ended
    why = said.reason or f"its runner says that it is {said.state}"
    return slot_moved(slot, State.FAILED, now=now, reason=why, actor=ACTOR, log_tail=said.lines)


def _reason(slot: Slot, said: SlotReport) -> str:
    """Why it stopped: as it is known already, and what the runner adds."""
    return slot.reason if not said.reason or said.reason in slot.reason else f"{slot.reason}; {said.reason}".strip("; ")


def _ending(slot: Slot, now: datetime) -> DesiredSlot:
    """A slot whose process is to end; one with requests may finish them for a while."""
    drains = timedelta(seconds=settings.GPUPLANE_SLOT_DRAIN_SECONDS)
    began = slot.draining_at or now
    finishes = slot.state == State.DRAINING and slot.active > 0 and _is_bound(slot) and now - began < drains
    if not finishes:
        return DesiredSlot(id=slot.pk, run=False)
    return _running(slot, _gpus_of([slot])[slot.pk])


def _running(slot: Slot, gpus: list[Gpu]) -> DesiredSlot:
    launch = msgspec.convert(slot.launch, Launch)
    return DesiredSlot(
        id=slot.pk,
        run=True,
        model=slot.model_name,
        runtime=launch.runtime,
        source=launch.source,
        lora=slot.lora,
        gpus=gpus,
        parallel=launch.parallel,
        context_length=launch.context_length,
        kv_type=launch.kv_type,
        args=list(launch.args),
        start_seconds=float(settings.GPUPLANE_SLOT_START_SECONDS),
        grace_seconds=GRACE_SECONDS,
    )


def _gpus_of(slots: Sequence[Slot]) -> Mapping[str, list[Gpu]]:
    """Slot → its GPUs by minor, as the ledger gave them."""
    ids = {slot.allocation_id: slot.pk for slot in slots}
    found: dict[str, list[Gpu]] = {slot.pk: [] for slot in slots}
    grants = AllocationDevice.objects.filter(allocation_id__in=list(ids), live=True).select_related("device")
    for grant in grants.order_by("minor"):
        device: Device | None = grant.device
        size = 0 if device is None else device.memory_bytes
        gpu = Gpu(minor=grant.minor, uuid=grant.uuid, memory=grant.memory_bytes, size=size)
        found[ids[grant.allocation_id]].append(gpu)
    return found


def _is_bound(slot: Slot) -> bool:
    return slot.allocation is not None and slot.allocation.state == AllocationState.BOUND


def _is_heard(runner: Runner, now: datetime) -> bool:
    return runner.state == RunnerState.CONNECTED and now - runner.seen_at < SILENT


def _ago(runner: Runner, now: datetime) -> int:
    return max(0, int((now - runner.seen_at).total_seconds()))
