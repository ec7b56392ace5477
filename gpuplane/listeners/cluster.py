"""Answers kube-scheduler and the API server: `/extender/` and `/webhooks/`, without Django's request cycle.

Called by `gpuplane.application` for every request under these paths, through any listener. Each path has one
handler, body in, JSON out, that never raises for bad input: a refusal is a well-formed ExtenderFilterResult or
AdmissionReview. Only what never reaches a handler is answered by a problem document: method, credential, size, unknown
path, and as the last resort a defect. Where the listener asks for no credential, a path whose answer depends on more
than the request has a handler for anonymous callers, with a rate limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import structlog
from prometheus_client import Counter, Histogram

from access.choices import TokenScope
from allocations.extender import views as extender
from allocations.scheduling.binder import InThread
from claims.admission import views as admission
from gpuplane.listeners import LISTENER, Receive, Scope, Send, client_address
from gpuplane.listeners.answers import Header, Refused, send_json, send_problem
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.bodies import BudgetHold, ClientGone, read_body
from gpuplane.listeners.body_limits import BodyLimits, Bound
from gpuplane.listeners.loopback import check_local
from gpuplane.listeners.rate_limits import ALL_LOOKUPS, LOOKUPS, AddressRateLimit
from gpuplane.listeners.threads import Lanes
from storage.switch_interval import SHORT_SWITCH_INTERVAL

Answer = bytes | tuple[int, bytes]
Handler = Callable[[bytes], Answer]
LoopHandler = Callable[[bytes, InThread, InThread], Awaitable[Answer]]
"""Handles a body on the event loop. Runs quick functions by the first, and those that may wait for the API server by
the second."""

INLINE_BYTES: Final = 64 * 1024
"""A longer body is never handled on the event loop: all other requests would wait for it."""

REFUSED_SECONDS: Final = 0.25
"""How long a refusal by rate is delayed, so that repeating the request at once costs less than answering it."""

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
    """One path: its handler, and the lane whose threads run it.

    `inline`: the handler touches no database, so small bodies are handled on the event loop. `slow`: the handler is a
    LoopHandler, and this is the lane in which it waits for the API server. `anonymous`: the handler of callers without
    a credential, where it is another one; it looks something up, so it has a rate limit.
    """

    path: str
    handler: Any
    lane: str = "filter"
    inline: bool = False
    slow: str = ""
    anonymous: Any = None

    @cached_property
    def scope(self) -> TokenScope:
        """The scope that a token needs here."""
        return TokenScope.WEBHOOKS if self.path.startswith("/webhooks/") else TokenScope.EXTENDER

    @cached_property
    def seconds(self) -> Histogram:
        """The path's histogram."""
        return SECONDS.labels(self.path)

    @cached_property
    def answered(self) -> Counter:
        """The path's counter of 200s."""
        return ANSWERS.labels(self.path, "200")


ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (
        Route("/extender/filter", extender.filter),
        Route("/extender/prioritize", extender.prioritize),
        Route("/extender/bind", extender.bind_on_loop, "ledger", slow="bind"),
        Route("/extender/preempt", extender.preempt),
        Route("/webhooks/pods/mutate", admission.pods_mutate, "webhooks", inline=True),
        Route("/webhooks/pods/takeover", admission.pods_takeover, "webhooks", inline=True),
        Route("/webhooks/pods/validate", admission.pods_validate, "webhooks"),
        Route("/webhooks/gpuclaims/validate", admission.gpuclaims_validate, "webhooks"),
        Route("/webhooks/gpugangs/validate", admission.gpugangs_validate, "webhooks"),
        Route("/webhooks/gpuqueues/validate", admission.gpuqueues_validate, "webhooks"),
        Route(
            "/webhooks/bindings/validate",
            admission.bindings_validate,
            "webhooks",
            slow="lookups",
            anonymous=admission.bindings_validate_anonymous,
        ),
    )
}

for _path in ROUTES:  # there from the start: a first request would otherwise be no increase
    SECONDS.labels(_path)
    ANSWERS.labels(_path, "200")


class ClusterPaths:
    """The dispatcher, an ASGI application for HTTP scopes."""

    def __init__(
        self,
        *,
        routes: Mapping[str, Route],
        bearer: Bearer,
        lanes: Lanes,
        limits: BodyLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: of the rate limit of anonymous callers."""
        self._bearer = bearer
        self._anonymous_rate = AddressRateLimit(LOOKUPS, ALL_LOOKUPS, clock=clock)
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
        route, bound, quick, slow = found
        try:
            handler = await self._authorized(route, scope)
            with BudgetHold(bound.budget) as held:
                body = await read_body(scope, receive, limit=bound.limit_bytes, held=held)
                await self._answer(route, handler, body, send, quick, slow)
        except Refused as refused:
            await _refuse(route, send, refused.status, refused.detail, refused.headers)
        except ClientGone:
            return

    async def _authorized(self, route: Route, scope: Scope) -> Any:
        """The handler for this caller. Raises Refused."""
        if scope["method"] != "POST":
            raise Refused(405, "only POST is understood here", (b"allow", b"POST"))
        listener = scope.get(LISTENER)
        if listener is None or listener.bearer:
            await self._bearer.actor(scope, needed=route.scope)
        elif listener.plain:
            check_local(scope)
        elif route.anonymous and listener.anonymous:
            if not self._anonymous_rate.take(client_address(scope)):
                await asyncio.sleep(REFUSED_SECONDS)
                # No Retry-After, which would make the API server repeat it: it does what its `failurePolicy` says.
                detail = "too many requests of this kind without a client certificate; use one, or retry later"
                raise Refused(429, detail)
            return route.anonymous
        return route.handler

    async def _answer(
        self, route: Route, handler: Any, body: bytes, send: Send, quick: InThread, slow: InThread
    ) -> None:
        began = time.perf_counter()
        short = len(body) <= INLINE_BYTES
        try:
            if route.slow:
                answer: Answer = await handler(body, quick, slow)
            elif route.inline and short:
                answer = handler(body)
            else:
                answer = await (quick(handler, body) if short else quick(_handle_long, handler, body))
        except Refused:
            raise
        except Exception:  # the last resort: kube-scheduler or the API server waits for an answer
            log.exception("cluster.request_failed", path=route.path, body_bytes=len(body))
            await _refuse(route, send, 500, "gpuplane could not answer; its log says why")
            return
        route.seconds.observe(time.perf_counter() - began)
        if isinstance(answer, tuple):
            ANSWERS.labels(route.path, str(answer[0])).inc()
            await send_json(send, *answer)
            return
        route.answered.inc()
        await send_json(send, 200, answer)


async def _refuse(route: Route, send: Send, status: int, detail: str, headers: Iterable[Header] = ()) -> None:
    ANSWERS.labels(route.path, str(status)).inc()
    await send_problem(send, status, detail, headers)


def _handle_long(handler: Handler, body: bytes) -> Answer:
    with SHORT_SWITCH_INTERVAL:
        return handler(body)
