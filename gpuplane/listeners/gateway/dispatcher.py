"""The process's part of the queue: reports what happens to its requests, and waits for their places.

Used by `app`, started and stopped by `gpuplane.start.gateway`. All that happens at one moment is one round
(`inference.dispatch.rounds`), in one thread; `arrivals` places requests where there is room. A waiting request is woken
by the round that starts it, here or by a message of another process; each second the database is read in case a message
was lost. Invariants:
- Each request that the database may know of gets its ending written, also while the database is away for moments.
- Once this process has not renewed its row for LEASE_SECONDS, nothing of it runs: others may give its places away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import structlog
from django.db import DatabaseError, InterfaceError

from allocations.scheduling.batcher import Batcher
from gpuplane.listeners.answers import RETRY_SOON, Header, Refused
from gpuplane.listeners.gateway import metrics
from gpuplane.listeners.gateway.arrivals import Arrivals
from gpuplane.listeners.gateway.flights import Flight, GatewayEnded, SlotLost
from gpuplane.listeners.gateway.registration import Registration
from gpuplane.listeners.gateway.replies import DatabaseAway, GatewayRefusal
from gpuplane.listeners.threads import Lane
from inference.choices import REQUEST_OPEN, RequestState
from inference.dispatch.reading import Seen, lost_requests, requests_seen
from inference.dispatch.records import Arrival, Ending, Outcome, Place, Recheck, Retry, Started, Step, StepResult
from inference.dispatch.rounds import dispatch
from inference.wake import REQUESTS
from storage.redis_listener import Subscription
from storage.switch_interval import SHORT_SWITCH_INTERVAL
from storage.task_end import end_tasks

LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 1.0
"""Pause before the database is tried again."""
LATE_SECONDS: Final = 5.0
"""A request whose round failed, and which the database does not know when it ends, is ended once more after that: a
server may commit what it was sent after the connection broke."""
IDLE_SECONDS: Final = 5.0
"""The thread of rounds gives its connection back after that, so that none gets stale."""
FULL_SECONDS: Final = 0.25
"""How long a queue that was full is taken for full, so that a flood costs no transactions."""
BUSY_SECONDS: Final = 5.0
"""How long a model is taken for busy after a request found no place. Only then do endings share an arrival's round,
which they make longer."""
ENDINGS_SECONDS: Final = 0.02
"""How long an ending may wait for others, while nobody here waits for its place."""
STOP_SECONDS: Final = 3.0
LOST_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.1
"""Between two reads of what was lost, however many messages come."""
RETRY_FULL: Final[Header] = (b"retry-after", b"5")
RETRY_LATER: Final[Header] = (b"retry-after", b"10")
IN_QUEUE: Final = (StepResult.WAITS, StepResult.QUEUE_FULL)
AWAY: Final = (DatabaseError, InterfaceError, Refused)
"""What a call in a thread raises while the database is away."""

log = structlog.get_logger(__name__)


class Dispatcher:
    """The flights of one process. `queue_seconds`, `queue_length`: bounds of waiting, the latter by model."""

    def __init__(self, *, queue_seconds: float, queue_length: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.registration = Registration(clock=clock, lost=self._end_all)
        self._arrivals = Arrivals(registration=self.registration, clock=clock)
        self._queue_seconds = queue_seconds
        self._queue_length = queue_length
        self._flights: dict[UUID, Flight] = {}
        self._waiting: dict[UUID, Flight] = {}
        self._full_until: dict[str, float] = {}
        self._busy_until: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: list[Ending] = []
        self._doubtful: set[UUID] = set()
        """Requests that were cut off within a round, or whose round failed: it may be committed still."""
        self._queued = 0
        self._stops = False
        self._writing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin, in the running loop. The database may be away."""
        self._loop, self._stops = asyncio.get_running_loop(), False
        self._look = asyncio.Event()
        self._look_for_lost = asyncio.Event()
        self._rounds = Lane("requests", threads=1, waiting=1, keeps_connection=True)
        self._reads = Lane("request-reads", threads=1, waiting=64)
        self._batcher: Batcher[Step, Outcome] = Batcher(lambda steps: self._rounds.run(self._round, steps))
        await self._arrivals.start()
        self.registration.start()
        self._tasks = [asyncio.create_task(self._look_again()), asyncio.create_task(self._cut_lost())]

    async def stop(self) -> None:
        """End all flights, write that, and end the row of this process."""
        self._stops = True
        self._end_all("the web process stops")
        self._write_ended()
        await end_tasks(*self._tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._writing:
                    await asyncio.wait(self._writing)
        await end_tasks(*self._writing)
        await self.registration.stop()
        await self._arrivals.close()
        for lane in (self._rounds, self._reads):
            lane.shutdown()

    # -- one request

    async def place(self, flight: Flight) -> Place:
        """A place for a request that has arrived. Raises Refused, and what a cut of the flight says."""
        if self._full_until.get(flight.model, 0.0) > self.clock():
            raise self._queue_full(flight.model)
        await self.registration.held()
        self._flights[flight.id] = flight
        flight.written = True
        arrival = Arrival(
            id=flight.id,
            model=flight.model,
            lora=flight.lora,
            priority=flight.priority,
            user=flight.user,
            token=flight.token,
            at=flight.arrived,
        )
        return await self._settled(flight, arrival)

    async def place_again(self, flight: Flight, reason: str) -> Place:
        """Another place for a request that its slot did not take. Raises Refused, and what a cut says."""
        before, flight.place = flight.place, None
        if before is None:
            raise GatewayRefusal(502, reason)
        tried, at = dict(flight.tried), self.clock()
        flight.tried[before.slot] = at
        retry = Retry(id=flight.id, model=flight.model, slot=before.slot, reason=reason, tried=tried, at=at)
        return await self._settled(flight, retry)

    def close(self, flight: Flight, state: RequestState, reason: str = "") -> None:
        """The request is over. Written in the background; a second time does nothing."""
        if self._flights.pop(flight.id, None) is None:
            return
        metrics.REQUESTS.labels(flight.model if flight.known else "", state.value).inc()
        if flight.written:
            ending = Ending(
                id=flight.id,
                model=flight.model,
                state=state,
                reason=reason,
                tokens=flight.tokens,
                first_byte_at=flight.first_byte_at,
                at=self.clock(),
            )
            self._ended.append(ending)
            if self._queued or self._stops:
                self._write_ended()
            elif len(self._ended) == 1:
                self._loop.call_later(ENDINGS_SECONDS, self._write_ended)

    def subscription(self) -> Subscription:
        """Messages of other processes, by which waiting requests are looked at."""
        return Subscription(
            channel=REQUESTS.name,
            on_message=lambda data: self._woken(data.decode("utf-8", "replace")),
            on_subscribed=lambda: None,  # each second the database is read anyway
            on_lost=lambda why: log.warning("gateway.redis_down", why=why),
        )

    def _woken(self, model: str) -> None:
        if any(flight.model == model for flight in self._waiting.values()):
            self._wanted.add(model)
            self._look.set()
        if self._flights:
            self._look_for_lost.set()

    # -- inside

    async def _settled(self, flight: Flight, step: Arrival | Retry) -> Place:
        """What becomes of the step, after waiting where it has to wait."""
        began = self.clock()
        flight.started = asyncio.get_running_loop().create_future()
        self._waiting[flight.id] = flight
        busy = self._busy_until.get(flight.model, 0.0) > began or not (self._queue_seconds and self._queue_length)
        if busy:
            self._write_ended()  # in the same round: it may need a place that they give back
        outcome: Outcome | None = None
        try:
            if isinstance(step, Arrival) and not busy:
                outcome = await self._arrivals.place(step)
            if outcome is None:
                outcome = await self._batcher.do(step)
            flight.known = flight.known or isinstance(outcome, Place) or outcome in IN_QUEUE
            if outcome in IN_QUEUE:
                self._busy_until[flight.model] = self.clock() + BUSY_SECONDS
            if outcome is StepResult.WAITS:
                with metrics.WAITING.labels(flight.model).track_inprogress():
                    outcome = await self._waited(flight, flight.started, began)
        except asyncio.CancelledError:
            if outcome is None:
                self._doubtful.add(flight.id)
            raise
        except (DatabaseError, InterfaceError) as error:
            self._doubtful.add(flight.id)
            log.warning("gateway.not_dispatched", why=str(error))
            raise GatewayRefusal(
                503, "the database does not answer; retry later", RETRY_SOON, code="not_ready"
            ) from error
        finally:
            self._waiting.pop(flight.id, None)
            flight.waited += self.clock() - began
        if isinstance(outcome, Place):
            await self.registration.held()  # this process may have stood still
            flight.place = outcome
            metrics.QUEUE_SECONDS.labels(flight.model).observe(self.clock() - began)
            return outcome
        raise self._refusal(flight, outcome)

    async def _waited(self, flight: Flight, started: asyncio.Future[Place], began: float) -> Place:
        left = self._queue_seconds - flight.waited - (self.clock() - began)
        self._queued += 1
        self._write_ended()  # their places may be what it waits for
        try:
            async with asyncio.timeout(left):
                return await started
        except TimeoutError:
            why = flight.reason or "all slots of the model are busy"
            raise WaitedTooLong(self._queue_seconds, why) from None
        finally:
            self._queued -= 1

    def _refusal(self, flight: Flight, outcome: Outcome) -> GatewayRefusal:
        if outcome is StepResult.UNKNOWN_MODEL:
            self._forget(flight)
            return GatewayRefusal(404, f"there is no model {flight.model}", code="model_not_found")
        if outcome is StepResult.QUEUE_FULL:
            self._forget(flight)
            self._full_until[flight.model] = self.clock() + FULL_SECONDS
            return self._queue_full(flight.model)
        return GatewayRefusal(503, flight.reason or "the request was ended while it waited", RETRY_LATER)

    def _queue_full(self, model: str) -> GatewayRefusal:
        detail = f"{self._queue_length} requests of model {model} already wait; retry later"
        return GatewayRefusal(429, detail, RETRY_FULL)

    def _forget(self, flight: Flight) -> None:
        """The database does not know of it."""
        flight.written = False
        self._flights.pop(flight.id, None)

    def _round(self, steps: Sequence[Step]) -> Sequence[Outcome]:
        """One round; in the thread of rounds. Raises DatabaseAway where this process has no row."""
        gateway, now = self.registration.gateway, self.registration.now()
        if not gateway and any(isinstance(step, Arrival) for step in steps):
            raise DatabaseAway  # nobody would end what no row stands for
        with SHORT_SWITCH_INTERVAL:
            done = dispatch(steps, gateway=gateway, now=now, monotonic=self.clock(), queue_length=self._queue_length)
        own = [one for one in done.started if one.gateway == gateway]
        if own:
            self._loop.call_soon_threadsafe(self._start, own)
        return done.outcomes

    def _start(self, started: Sequence[Started]) -> None:
        for one in started:
            flight = self._waiting.get(one.request)
            if flight is not None and flight.started is not None and not flight.started.done():
                flight.started.set_result(one.place)

    def _write_ended(self) -> None:
        """Start writing the endings that were collected for one transaction."""
        ended, self._ended = self._ended, []
        for ending in ended:
            task = asyncio.create_task(self._write(ending))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, ending: Ending) -> None:
        """Write the ending; until it succeeds, or others have ended this gateway."""
        gateway = self.registration.gateway
        doubtful = ending.id in self._doubtful
        self._doubtful.discard(ending.id)
        if doubtful:
            await self._arrivals.written()
        while self.registration.gateway == gateway:
            try:
                outcome = await self._batcher.do(ending)
            except AWAY as error:
                log.warning("gateway.ending_not_written", why=str(error))
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not doubtful or outcome is not StepResult.OVER:
                return
            doubtful = False
            await asyncio.sleep(LATE_SECONDS)

    async def _look_again(self) -> None:
        """Read what became of waiting requests, when it is asked for and each LOOK_SECONDS."""
        while True:
            await _set_or_late(self._look, LOOK_SECONDS)
            wanted, self._wanted = self._wanted, set()
            names = wanted or {flight.model for flight in self._waiting.values()}
            asked = {flight.id: flight.started for flight in self._waiting.values() if flight.model in names}
            ids = list(asked)  # what each of them reports is in a round before the looks of this one
            if not ids:
                await self._rounds.rest(IDLE_SECONDS)
                await self._arrivals.rest()
                continue
            try:
                await asyncio.gather(*(self._batcher.do(Recheck(model=name)) for name in names))
                self._saw(await self._reads.run(requests_seen, ids), asked)
            except AWAY as error:
                log.warning("gateway.not_looked", why=str(error))
                await asyncio.sleep(AGAIN_SECONDS)

    def _saw(self, seen: dict[UUID, Seen], asked: dict[UUID, asyncio.Future[Place] | None]) -> None:
        for pk, one in seen.items():
            flight = self._waiting.get(pk)
            if flight is None or flight.started is None or flight.started.done():
                continue
            if flight.started is not asked.get(pk):
                continue  # it waits anew since the read began
            flight.reason = one.reason
            if one.place is not None:
                flight.started.set_result(one.place)
            elif one.state not in REQUEST_OPEN:
                flight.started.set_exception(GatewayRefusal(503, one.reason or "the request was ended", RETRY_LATER))

    async def _cut_lost(self) -> None:
        """Cut flights whose slot has failed, when a slot has moved and each LOST_SECONDS."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await _set_or_late(self._look_for_lost, LOST_SECONDS)
            if not self._flights or not self.registration.gateway:
                continue
            try:
                lost = await self._reads.run(lost_requests, self.registration.gateway)
            except AWAY as error:
                log.warning("gateway.not_looked", why=str(error))
                continue
            for pk, (slot, why) in lost.items():
                flight = self._flights.get(pk)
                if flight is not None and flight.place is not None and slot in (None, flight.place.slot):
                    flight.cut(SlotLost(why))

    def _end_all(self, why: str) -> None:
        if self._flights:
            log.warning("gateway.flights_ended", why=why, flights=len(self._flights))
        for flight in list(self._flights.values()):
            flight.cut(GatewayEnded(why))


class WaitedTooLong(GatewayRefusal):
    """No place became free in time."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(503, f"no slot became free within {seconds:.0f} s: {why}", RETRY_LATER)


async def _set_or_late(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, so long at most, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
