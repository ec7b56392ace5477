"""Answers requests by Django, each whole in one thread of a pool.

Called by `gpuplane.asgi`, behind `bodies.guarded`, which bounds how many there are. Django's own handler runs middleware that can be
asynchronous on the event loop and the rest in threads: a request of ours, whose views and middleware are all synchronous, crossed
over a dozen times, and got a thread and a database connection of its own. Kept true: a request has its thread until its view has
ended, whether or not the client still waits; a thread keeps its SQLite connection for the next request, as `CONN_MAX_AGE` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
from concurrent.futures import Executor
from typing import Any

from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from django.urls import set_script_prefix

from gpuplane.doors import Receive, Scope, Send
from gpuplane.start.interpreter import SHORT_TURNS

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers, body."""


class DjangoRequests(ASGIHandler):
    """An ASGI application for HTTP scopes."""

    def __init__(self, executor: Executor) -> None:
        BaseHandler.__init__(self)  # ASGIHandler's own would load the middleware as asynchronous
        self.load_middleware(is_async=False)
        self._executor = executor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        """Answer one request."""
        body = await _whole(receive)
        if body is None:
            return
        leaving = asyncio.ensure_future(receive())  # whoever watches the client hears of its end
        try:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            status, headers, content = await loop.run_in_executor(
                self._executor, context.run, self._answer, scope, body
            )
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, scope: Scope, body: bytes) -> Answer:
        with SHORT_TURNS:
            return self._answered(scope, body)

    def _answered(self, scope: Scope, body: bytes) -> Answer:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        with io.BytesIO(body) as file:
            request, refusal = self.create_request(scope, file)
            response: Any = refusal if request is None else self.get_response(request)
            try:
                content = b"".join(response) if response.streaming else response.content
                return response.status_code, _headers(response), content
            finally:
                response.close()  # which ends the request for Django: connections that are too old are closed


async def _whole(receive: Receive) -> bytes | None:
    """The body; None where the client left before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _headers(response: HttpResponseBase) -> list[tuple[bytes, bytes]]:
    cookies = [
        (b"Set-Cookie", morsel.output(header="").encode("ascii").strip()) for morsel in response.cookies.values()
    ]
    return [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()] + cookies
