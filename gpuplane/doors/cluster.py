"""Answers kube-scheduler and the API server: `/extender/` and `/webhooks/`, without Django's request cycle.

Called by `gpuplane.asgi` for every request under these paths, through whichever door. Each path has one
synchronous handler, body in, JSON out, that never raises for bad input: a refusal is a well-formed
ExtenderFilterResult or AdmissionReview. What is answered here as a problem document is only what never
reaches a handler: method, credential, size, unknown path, and as the last resort a defect of ours. Where the door asks
for no credential, what depends on more than the question has a handler of its own for strangers, and a pace.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import Counter, Histogram

from access.choices import TokenScope
from gpuplane.doors import DOOR, Receive, Scope, Send
from gpuplane.doors.answers import send_json, send_problem
from gpuplane.doors.bearer import Bearer, Refused
from gpuplane.doors.bodies import (
    BUSY,
    CLOSE,
    COME_AGAIN,
    NO_ROOM,
    BodyTooLarge,
    ClientGone,
    Held,
    NoRoom,
    read_body,
    too_large,
)
from gpuplane.doors.body_limits import BodyLimits, Bound
from gpuplane.doors.loopback import check_local
from gpuplane.doors.pace import LookupPace
from gpuplane.doors.threads import Busy, Lanes
from gpuplane.start.interpreter import SHORT_TURNS

if TYPE_CHECKING:
    from allocations.extender.gathering import InThread  # a handler's module is imported at its first request

Answer = bytes | tuple[int, bytes]
Handler = Callable[[bytes], Answer]
Together = Callable[[bytes, "InThread", "InThread"], Awaitable[Answer]]
"""Handles a body on the event loop. Runs functions that are quick by the first, those that may wait for the API server
by the second."""

INLINE_BYTES: Final = 64 * 1024
"""A longer body is never handled on the event loop: all other requests would wait for it."""

ANSWERS = Counter("gpuplane_cluster_requests", "Requests on the cluster's paths", ["path", "status"])
SECONDS = Histogram(
    "gpuplane_cluster_request_seconds",
    "Time from the complete body to the answer",
    ["path"],
    # kube-scheduler waits 60 s for an extender, the API server 30 s for a webhook
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60),
)

log = structlog.get_logger(__name__)


@dataclass
class Route:
    """One path: its handler by name, imported at its first request, and the lane whose threads run it.

    `inline`: it touches no database, so small bodies are handled on the event loop. `slow`: a coroutine function, and the lane that it
    uses where it has to wait for the API server.

    `strangers`: the handler, by name, of those who come by a door that asks for no credential, where it is another one; it looks
    something up, so it is asked at a pace.
    """

    path: str
    module: str
    name: str
    lane: str = "filter"
    inline: bool = False
    slow: str = ""
    strangers: str = ""

    @cached_property
    def handler_for_strangers(self) -> Any:
        """See `handler`."""
        return getattr(importlib.import_module(self.module), self.strangers)

    @cached_property
    def handler(self) -> Any:
        """The function. Raises ImportError or AttributeError when the build is incomplete."""
        return getattr(importlib.import_module(self.module), self.name)

    @cached_property
    def scope(self) -> TokenScope:
        """What a token must be for, where one is asked for."""
        return TokenScope.WEBHOOKS if self.path.startswith("/webhooks/") else TokenScope.EXTENDER

    @cached_property
    def seconds(self) -> Histogram:
        """The path's histogram, looked up once."""
        return SECONDS.labels(self.path)

    @cached_property
    def answered(self) -> Counter:
        """The path's counter of 200s, looked up once."""
        return ANSWERS.labels(self.path, "200")


_EXTENDER = "allocations.extender.views"
_ADMISSION = "claims.admission.views"

ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (
        Route("/extender/filter", _EXTENDER, "filter"),
        Route("/extender/prioritize", _EXTENDER, "prioritize"),
        Route("/extender/bind", _EXTENDER, "bind_together", "ledger", slow="bind"),
        Route("/extender/preempt", _EXTENDER, "preempt"),
        Route("/webhooks/pods/mutate", _ADMISSION, "pods_mutate", "webhooks", inline=True),
        Route("/webhooks/pods/takeover", _ADMISSION, "pods_takeover", "webhooks", inline=True),
        Route("/webhooks/pods/validate", _ADMISSION, "pods_validate", "webhooks"),
        Route("/webhooks/gpuclaims/validate", _ADMISSION, "gpuclaims_validate", "webhooks"),
        Route(
            "/webhooks/bindings/validate",
            _ADMISSION,
            "bindings_validate_apart",
            "webhooks",
            slow="lookups",
            strangers="bindings_validate_for_strangers_apart",
        ),
    )
}

for _path in ROUTES:  # there from the start: a first request would otherwise be no increase
    SECONDS.labels(_path)
    ANSWERS.labels(_path, "200")


class Cluster:
    """The dispatcher, an ASGI application for HTTP scopes."""

    def __init__(
        self,
        *,
        routes: Mapping[str, Route],
        bearer: Bearer,
        lanes: Lanes,
        limits: BodyLimits,
        pace: LookupPace | None = None,
    ) -> None:
        """`pace`: of strangers' lookups."""
        self._bearer = bearer
        self._pace = pace or LookupPace()
        self._routes: dict[str, tuple[Route, Bound, InThread, InThread]] = {}
        for path, route in routes.items():
            slow = getattr(lanes, route.slow or route.lane).run
            self._routes[path] = route, limits.of_cluster(path), getattr(lanes, route.lane).run, slow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._routes.get(scope["path"])
        if found is None:
            await send_problem(send, 404, "there is no such path")
            return
        route, bound, at_once, waiting = found
        if scope["method"] != "POST":
            await self._refuse(route, send, 405, "only POST is understood here", [(b"allow", b"POST")])
            return
        door = scope.get(DOOR)
        stranger = False
        try:
            if door is None or door.bearer:
                await self._bearer.actor(scope, needed=route.scope)
            elif door.plain:
                check_local(scope)
            elif route.strangers and door.anonymous:
                stranger = True
                self._check_pace(scope)
            with Held(bound.budget) as held:
                body = await read_body(scope, receive, limit=bound.limit_bytes, held=held)
                handler = route.handler_for_strangers if stranger else route.handler
                await self._answer(route, handler, body, send, at_once, waiting)
        except Refused as refused:
            await self._refuse(route, send, refused.status, refused.detail, refused.headers)
        except BodyTooLarge:
            await self._refuse(route, send, 413, too_large(bound.limit_bytes), [CLOSE])
        except NoRoom:
            await self._refuse(route, send, 503, NO_ROOM, [COME_AGAIN, CLOSE])
        except ClientGone:
            return

    def _check_pace(self, scope: Scope) -> None:
        """Raises Refused: no verdict, so the API server does what its `failurePolicy` says. No Retry-After: it would ask again."""
        client = scope.get("client")
        if not self._pace.take(client[0] if client else ""):
            raise Refused(429, "too many questions of this kind; a client certificate has no such limit")

    async def _answer(
        self, route: Route, handler: Any, body: bytes, send: Send, at_once: InThread, waiting: InThread
    ) -> None:
        began = time.perf_counter()
        try:
            answer = await _handled(route, handler, body, at_once, waiting)
        except Busy:
            await self._refuse(route, send, 503, BUSY, [COME_AGAIN])
            return
        except Exception:  # the last resort: kube-scheduler or the API server waits for an answer
            log.exception("cluster.request_failed", path=route.path, body_bytes=len(body))
            await self._refuse(route, send, 500, "gpuplane could not answer; its log says why")
            return
        route.seconds.observe(time.perf_counter() - began)
        if isinstance(answer, tuple):
            ANSWERS.labels(route.path, str(answer[0])).inc()
            await send_json(send, *answer)
            return
        route.answered.inc()
        await send_json(send, 200, answer)

    async def _refuse(
        self, route: Route, send: Send, status: int, detail: str, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        ANSWERS.labels(route.path, str(status)).inc()
        await send_problem(send, status, detail, headers or [])


async def _handled(route: Route, handler: Any, body: bytes, at_once: InThread, waiting: InThread) -> Answer:
    if route.slow:
        together: Together = handler
        return await together(body, at_once, waiting)
    synchronous: Handler = handler
    if route.inline and len(body) <= INLINE_BYTES:
        return synchronous(body)
    answer: Answer = await at_once(synchronous if len(body) <= INLINE_BYTES else _long(synchronous), body)
    return answer


def _long(handler: Handler) -> Handler:
    def handled(body: bytes) -> Answer:
        with SHORT_TURNS:
            return handler(body)

    return handled
