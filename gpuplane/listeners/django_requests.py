"""Answers requests by Django, each whole in one thread of a pool.

Called by `gpuplane.application`, behind `bodies.guarded`, which bounds how many there are and reads their bodies.
Django's own handler runs middleware that can be asynchronous on the event loop and the rest in threads: a request,
whose views and middleware are all synchronous here, switched threads a dozen times. Invariants: a request has its
thread until its view has ended, whether or not the client still waits; a thread keeps its SQLite connection for the
next request, as `CONN_MAX_AGE` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
from concurrent.futures import Executor
from typing import IO, Any

import structlog
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponseBadRequest, HttpResponseBase
from django.urls import set_script_prefix

from gpuplane.listeners import Receive, Scope, Send
from storage.switch_interval import SHORT_SWITCH_INTERVAL

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers, body."""

log = structlog.get_logger(__name__)


class DjangoRequests(ASGIHandler):
    """An ASGI application for HTTP scopes."""

    def __init__(self, executor: Executor) -> None:
        BaseHandler.__init__(self)  # ASGIHandler's own would load the middleware as asynchronous
        self.load_middleware(is_async=False)
        self._executor = executor

    # asgiref declares other types for ASGI
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]  # see above
        """Answer one request, whose body comes in one message."""
        body = (await receive())["body"]
        leaving = asyncio.ensure_future(receive())  # `disconnects` hears of the connection's end
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

    def _request(self, scope: Scope, file: IO[bytes]) -> tuple[HttpRequest | None, HttpResponseBase | None]:
        """The request, or its refusal: also where parameters of its media type cannot be decoded."""
        try:
            return self.create_request(scope, file)
        except ValueError as error:
            log.info("request.unreadable", why=str(error)[:200])
            return None, HttpResponseBadRequest()

    def _answer(self, scope: Scope, body: bytes) -> Answer:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        with SHORT_SWITCH_INTERVAL, io.BytesIO(body) as file:
            request, refusal = self._request(scope, file)
            response: Any = refusal if request is None else self.get_response(request)
            try:
                content = b"".join(response) if response.streaming else response.content
                return response.status_code, _headers(response), content
            finally:
                response.close()  # ends the request for Django: connections that are too old are closed
                _break_cycles(request, response)


def _break_cycles(request: HttpRequest | None, response: Any) -> None:
    """Break the cycles by which a request holds itself, its body and its user, and with REST framework its view.

    Else all of it stays until the next full garbage collection (`gpuplane.start.gc_tuning`).
    """
    rendered = getattr(response, "renderer_context", None)
    if rendered:
        for one in (rendered.get("request"), rendered.get("view")):
            if one is not None:
                vars(one).clear()
        rendered.clear()
    if request is not None:
        vars(request).clear()


def _headers(response: HttpResponseBase) -> list[tuple[bytes, bytes]]:
    cookies = [
        (b"Set-Cookie", morsel.output(header="").encode("ascii").strip()) for morsel in response.cookies.values()
    ]
    return [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()] + cookies
