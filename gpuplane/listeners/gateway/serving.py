"""Serves one request of the gateway: its body, a place, the runtime's answer as it comes.

Called by `app`. Invariants: `Dispatcher.close` is called for each request, however it ends; another slot is asked only
while no byte of an answer was sent to the client, and an answer that has begun is followed by no other; the body is
released once the answer begins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

import structlog

from access.actors import Actor
from access.choices import Role
from gpuplane.listeners import Message, Receive, Scope, Send, header
from gpuplane.listeners.answers import Header, Refused
from gpuplane.listeners.bodies import BudgetHold, read_body
from gpuplane.listeners.body_limits import Bound
from gpuplane.listeners.gateway import metrics
from gpuplane.listeners.gateway.dispatcher import RETRY_LATER, Dispatcher, WaitedTooLong
from gpuplane.listeners.gateway.flights import ClientLeft, Cut, Flight, SlotLost
from gpuplane.listeners.gateway.replies import REQUEST_ID, GatewayRefusal, error_event
from gpuplane.listeners.gateway.request_body import RequestBody, read_priority, read_request_body
from gpuplane.listeners.gateway.upstream import Answer, Upstream
from gpuplane.listeners.threads import Lane
from inference.choices import RequestState

TRIES_MOST: Final = 3
"""Slots that one request is sent to."""
CLIENT_SECONDS: Final = 120.0
"""How long a client may read nothing of what there is for it."""
INLINE_BYTES: Final = 64 * 1024
"""A larger body is read and written in a thread."""
P = ParamSpec("P")
R = TypeVar("R")
STOPPED: Final = "the web process stopped"
FAILED: Final = "gpuplane failed"

log = structlog.get_logger(__name__)


class Serving:
    """Serves requests. `bound`: of their bodies."""

    def __init__(self, *, bound: Bound, dispatcher: Dispatcher, upstream: Upstream, bodies: Lane) -> None:
        """`bodies`: threads for large ones."""
        self._bound = bound
        self._dispatcher = dispatcher
        self._upstream = upstream
        self._bodies = bodies

    async def serve(
        self, path: str, scope: Scope, receive: Receive, send: Send, *, actor: Actor, request_id: UUID
    ) -> None:
        """Answer it. Raises Refused while nothing was sent, ClientGone, ClientLeft."""
        arrived = self._dispatcher.clock()
        with BudgetHold(self._bound.budget) as held:
            body = await read_body(scope, receive, limit=self._bound.limit_bytes, held=held)
            asked = await self._off_loop(len(body), read_request_body, body)
            size = len(body)
            del body
            flight = Flight(
                request_id=request_id,
                model=asked.model,
                lora=asked.lora,
                priority=read_priority(header(scope, b"x-request-priority"), may_raise=actor.role != Role.VIEWER),
                user=actor.name,
                token=actor.token,
                arrived=arrived,
            )
            watcher = asyncio.create_task(_watch(receive, flight, self._dispatcher.clock))
            try:
                with self._accounted(flight), flight.cuts():
                    answer = await self._answer(flight, path, asked, size)
                    asked.fields.clear()
                    held.release()
                    await self._pass_on(flight, answer, send)
            finally:
                watcher.cancel()

    async def _answer(self, flight: Flight, path: str, asked: RequestBody, size: int) -> Answer:
        """The beginning of an answer, from the first slot that gives one. Raises Refused, Cut."""
        place = await self._dispatcher.place(flight)
        while True:
            try:
                with flight.cuts(), metrics.RUNNING.labels(flight.model).track_inprogress():
                    body = await self._off_loop(size, asked.body, place.model_name)
                    return await self._upstream.send(place, path, body, request_id=flight.id)
            except SlotLost as lost:
                flight.tries += 1
                log.info("gateway.slot_lost", request=str(flight.id), slot=place.slot, why=str(lost))
                if flight.tries >= TRIES_MOST:
                    raise GatewayRefusal(502, str(lost), RETRY_LATER) from lost
                place = await self._dispatcher.place_again(flight, str(lost))

    async def _off_loop(self, size: int, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, in a thread for a large body: all other streams would wait for it."""
        if size <= INLINE_BYTES:
            return function(*args, **kwargs)
        return await self._bodies.run(function, *args, **kwargs)

    async def _pass_on(self, flight: Flight, answer: Answer, send: Send) -> None:
        """Send the answer on, piece by piece."""
        flight.first_byte_at = self._dispatcher.clock()
        metrics.FIRST_TOKEN_SECONDS.labels(flight.model).observe(flight.first_byte_at - flight.arrived)
        named: Header = (REQUEST_ID, str(flight.id).encode())
        flight.status = answer.status
        try:
            with flight.cuts(), metrics.RUNNING.labels(flight.model).track_inprogress():
                headers = [*answer.headers, named]
                await self._send(
                    flight, send, {"type": "http.response.start", "status": answer.status, "headers": headers}
                )
                flight.begun = True
                piece = answer.first
                while piece:
                    flight.passed(piece)
                    await self._send(flight, send, {"type": "http.response.body", "body": piece, "more_body": True})
                    piece = await answer.more()
                await self._send(flight, send, {"type": "http.response.body", "body": b""})
        except ClientLeft:
            raise
        except Cut as cut:
            if not flight.begun:
                raise
            flight.broken = str(cut)
            log.warning("gateway.answer_broken", request=str(flight.id), why=str(cut))
            if answer.streams:  # its end says so; any other answer ends short, and the server closes the connection
                event = (b"" if flight.is_between_events else b"\n\n") + error_event(502, str(cut))
                with contextlib.suppress(Cut), flight.cuts():  # a further cut: the stream ends short as well
                    await self._send(flight, send, {"type": "http.response.body", "body": event, "more_body": True})
                    await self._send(flight, send, {"type": "http.response.body", "body": b""})
        finally:
            answer.close()

    async def _send(self, flight: Flight, send: Send, message: Message) -> None:
        """Send it on. `_watch` looks whether the client reads: a timer for each piece costs a seventh of the work."""
        flight.sending_since = self._dispatcher.clock()
        await send(message)
        flight.sending_since = None

    @contextlib.contextmanager
    def _accounted(self, flight: Flight) -> Iterator[None]:
        """Report how the request ended."""
        state, reason = RequestState.FAILED, FAILED
        try:
            yield
        except asyncio.CancelledError:
            reason = STOPPED
            raise
        except ClientLeft as left:
            state, reason = RequestState.CANCELLED, str(left)
            raise
        except WaitedTooLong as late:
            state, reason = RequestState.REFUSED, late.detail
            raise
        except Refused as refused:
            reason = refused.detail
            raise
        except Cut as cut:
            reason = str(cut)
            raise GatewayRefusal(503, reason, RETRY_LATER) from cut
        else:
            if flight.broken or flight.status >= 500:
                reason = flight.broken or f"the runtime answered {flight.status}"
            else:
                state, reason = RequestState.DONE, ""
        finally:
            self._measure(flight)
            self._dispatcher.close(flight, state, reason)

    def _measure(self, flight: Flight) -> None:
        if flight.first_byte_at is None or not (tokens := flight.tokens):
            return
        metrics.TOKENS.labels(flight.model).inc(tokens)
        seconds = self._dispatcher.clock() - flight.first_byte_at
        if tokens > 1 and seconds > 0:
            metrics.TOKENS_A_SECOND.labels(flight.model).observe((tokens - 1) / seconds)


async def _watch(receive: Receive, flight: Flight, clock: Callable[[], float]) -> None:
    """Cut the flight when its client goes, or reads nothing for CLIENT_SECONDS. Nothing else is to be received."""
    left = CLIENT_SECONDS
    while True:
        try:
            async with asyncio.timeout(left):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            left = CLIENT_SECONDS if flight.sending_since is None else flight.sending_since + CLIENT_SECONDS - clock()
            if left <= 0:
                flight.cut(ClientLeft(f"the client has read nothing for {CLIENT_SECONDS:.0f} s"))
                return
        else:
            break
    flight.cut(ClientLeft("the client has gone"))
