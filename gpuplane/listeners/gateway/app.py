"""Answers `/v1/`: a plain ASGI application for HTTP scopes, called by `gpuplane.application`.

Invariants: only tokens of scope `rest` pass; each answer has an X-Request-Id, which is the id of the request in the
database where there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import orjson
import structlog

from access.choices import TokenScope
from gpuplane.listeners import Receive, Scope, Send
from gpuplane.listeners.answers import Header, Refused, send_response
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.bodies import ClientGone
from gpuplane.listeners.gateway import metrics
from gpuplane.listeners.gateway.dispatcher import AWAY
from gpuplane.listeners.gateway.flights import ClientLeft
from gpuplane.listeners.gateway.replies import REQUEST_ID, DatabaseAway, GatewayRefusal, send_error
from gpuplane.listeners.gateway.serving import Serving
from gpuplane.listeners.threads import Lane
from inference.dispatch.reading import models_known

COMPLETIONS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
MODELS: Final = "/v1/models"
MODELS_SECONDS: Final = 1.0
"""How long the list of models is kept."""
REFUSED_SECONDS: Final = 0.25
"""How long the answer of a full queue is delayed, so that repeating the request at once costs less than answering."""

log = structlog.get_logger(__name__)


class Gateway:
    """The application."""

    def __init__(
        self, *, bearer: Bearer, serving: Serving, reads: Lane, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`reads`: threads that read the list of models."""
        self._bearer = bearer
        self._reads = reads
        self._clock = clock
        self._serving = serving
        self._models: list[dict[str, object]] = []
        self._models_until = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request_id = uuid4()
        named: Header = (REQUEST_ID, str(request_id).encode())
        path: str = scope["path"]
        try:
            _check(path, scope["method"])
            actor = await self._bearer.actor(scope, needed=TokenScope.REST)
            if path in COMPLETIONS:
                await self._serving.serve(path, scope, receive, send, actor=actor, request_id=request_id)
            else:
                body = await self._models_answer(path)
                await send_response(send, 200, body, content_type=b"application/json", headers=[named])
        except Refused as refused:
            metrics.REFUSED.labels(str(refused.status)).inc()
            if refused.status == 429:
                await asyncio.sleep(REFUSED_SECONDS)
            await send_error(send, refused, [named])
        except (ClientGone, ClientLeft):
            return

    async def _models_answer(self, path: str) -> bytes:
        """The list of models, or one of them. Raises Refused."""
        if self._clock() >= self._models_until:
            try:
                found = await self._reads.run(models_known)
            except AWAY as error:
                raise DatabaseAway from error
            self._models = [
                {"id": name, "object": "model", "created": int(since.timestamp()), "owned_by": "gpuplane"}
                for name, since in found
            ]
            self._models_until = self._clock() + MODELS_SECONDS
        if path == MODELS:
            return orjson.dumps({"object": "list", "data": self._models})
        asked = path.removeprefix(f"{MODELS}/")
        for model in self._models:
            if model["id"] == asked:
                return orjson.dumps(model)
        raise GatewayRefusal(404, f"there is no model {asked}", code="model_not_found")


def _check(path: str, method: str) -> None:
    """Raises Refused."""
    if path in COMPLETIONS:
        if method != "POST":
            raise GatewayRefusal(405, "only POST is understood here", (b"allow", b"POST"))
    elif path == MODELS or (path.startswith(f"{MODELS}/") and path != f"{MODELS}/"):
        if method != "GET":
            raise GatewayRefusal(405, "only GET is understood here", (b"allow", b"GET"))
    else:
        raise GatewayRefusal(404, "there is no such path")
