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
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import Counter, Histogram

from gpuplane.doors import DOOR, Receive, Scope, Send
from gpuplane.doors.answers import send_json, send_problem
from gpuplane.doors.bearer import Bearer, Refused
from gpuplane.doors.bodies import BodyTooLarge, ClientGone, read_body, too_large
from gpuplane.doors.lookups import Pace
from gpuplane.doors.loopback import check_local
from gpuplane.doors.threads import in_thread

if TYPE_CHECKING:
    from allocations.extender.gathering import InThread  # a handler's module is imported at its first request

Answer = bytes | tuple[int, bytes]
Handler = Callable[[bytes], Answer]
Together = Callable[[bytes, "InThread", "InThread"], Awaitable[Answer]]
"""Handles a body on the event loop. Runs functions that speak to the database by the first, those that also wait for the API server by the second."""

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
    """One path: its handler by name, imported at its first request.

    `inline` ones touch no database; `together`: a coroutine function. `strangers`: the handler, by name, of those who come
    by a door that asks for no credential, where it is another one; it looks something up, so it is asked at a pace.
    """

    path: str
    module: str
    name: str
    inline: bool = False
    together: bool = False
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
        Route("/extender/bind", _EXTENDER, "bind_together", together=True),
        Route("/extender/preempt", _EXTENDER, "preempt"),
        Route("/webhooks/pods/mutate", _ADMISSION, "pods_mutate", inline=True),
        Route("/webhooks/pods/takeover", _ADMISSION, "pods_takeover", inline=True),
        Route("/webhooks/pods/validate", _ADMISSION, "pods_validate"),
        Route("/webhooks/gpuclaims/validate", _ADMISSION, "gpuclaims_validate"),
        Route(
            "/webhooks/bindings/validate", _ADMISSION, "bindings_validate", strangers="bindings_validate_for_strangers"
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
        executor: Executor,
        binders: Executor,
        body_limit: int,
        pace: Pace | None = None,
    ) -> None:
        """`executor` runs what is answered at once, `binders` what waits for the API server. `pace`: of strangers."""
        self._routes = routes
        self._bearer = bearer
        self._executor = executor
        self._at_once: InThread = partial(in_thread, executor)
        self._waiting: InThread = partial(in_thread, binders)
        self._limit = body_limit
        self._pace = pace or Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        route = self._routes.get(scope["path"])
        if route is None:
            await send_problem(send, 404, "there is no such path")
            return
        if scope["method"] != "POST":
            await self._refuse(route, send, 405, "only POST is understood here", [(b"allow", b"POST")])
            return
        door = scope.get(DOOR)
        stranger = False
        try:
            if door is None or door.bearer:
                await self._bearer.actor(scope)
            elif door.plain:
                check_local(scope)
            elif route.strangers and door.anonymous:
                stranger = True
                self._check_pace(scope)
            body = await read_body(scope, receive, limit=self._limit)
        except Refused as refused:
            await self._refuse(route, send, refused.status, refused.detail, refused.headers)
            return
        except BodyTooLarge:
            await self._refuse(route, send, 413, too_large(self._limit), [(b"connection", b"close")])
            return
        except ClientGone:
            return
        await self._answer(route, body, send, stranger=stranger)

    def _check_pace(self, scope: Scope) -> None:
        """Raises Refused: no verdict, so `failurePolicy` decides. No Retry-After: the API server would ask again."""
        client = scope.get("client")
        if not self._pace.take(client[0] if client else ""):
            raise Refused(429, "too many questions of this kind; a client certificate has no such limit")

    async def _answer(self, route: Route, body: bytes, send: Send, *, stranger: bool) -> None:
        began = time.perf_counter()
        try:
            answer = await self._handled(route, body, stranger=stranger)
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

    async def _handled(self, route: Route, body: bytes, *, stranger: bool) -> Answer:
        if route.together:
            together: Together = route.handler
            return await together(body, self._at_once, self._waiting)
        handler: Handler = route.handler_for_strangers if stranger else route.handler
        return handler(body) if route.inline else await in_thread(self._executor, handler, body)

    async def _refuse(
        self, route: Route, send: Send, status: int, detail: str, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        ANSWERS.labels(route.path, str(status)).inc()
        await send_problem(send, status, detail, headers or [])
