"""A proxy that fails on purpose: in front of the API server for gpuplane, or in front of gpuplane for kube-scheduler.

HTTP in, HTTP or HTTPS out, watches streamed. Without rules everything passes. A rule meets requests by method and path
and either answers in the server's stead, holds the request until the test lets it go, or lets it reach the server and
loses the answer.
"""

import asyncio
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

START_SECONDS = 20.0
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Rule:
    """What happens to the next `times` requests whose method and path match; `met` counts them."""

    method: str
    path: re.Pattern[str]
    times: int
    status: int = 0
    """Answer this in the server's stead."""
    retry_after: int = 0
    lose: bool = False
    """Let it through and break the connection in place of the answer."""
    gate: threading.Event | None = None
    """Hold the request until this is set, then let it through."""
    met: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is one of them."""
        return self.met < self.times and method == self.method and self.path.search(path) is not None


class Faults:
    """The proxy on `port` of loopback, to `upstream`. Rules may be added and taken away while it runs."""

    def __init__(self, *, port: int, upstream: str, ca: Path | None = None) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.down = False
        """Every request's connection is broken, as by a server that is gone."""
        self._upstream = upstream
        self._verify: ssl.SSLContext | bool = True if ca is None else ssl.create_default_context(cafile=str(ca))
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._client: httpx.AsyncClient | None = None
        self._under_way: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def serving(self) -> Iterator["Faults"]:
        """Serve in a thread of its own."""
        config = uvicorn.Config(
            self._app,
            host="127.0.0.1",
            port=self.port,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            http=_Breakable,
            interface="asgi3",
        )
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve(server)), name="faults", daemon=True
        )
        thread.start()
        waited = threading.Event()
        for _ in range(int(START_SECONDS / 0.02)):
            if server.started:
                break
            waited.wait(0.02)  # uvicorn tells by this flag alone
        assert server.started, "the proxy did not start"
        try:
            yield self
        finally:
            self.clear()
            server.should_exit = True
            thread.join(START_SECONDS)
            self._loop.close()

    @contextmanager
    def rule(self, method: str, path: str, *, times: int = 1, **what: Any) -> Iterator[Rule]:
        """A rule for the block; keywords are those of `Rule`."""
        made = Rule(method, re.compile(path), times, **what)
        with self._lock:
            self._rules.append(made)
        try:
            yield made
        finally:
            self._drop(made)

    def cut(self) -> None:
        """Break every answer that is under way, watches above all; new requests are served."""
        with self._lock:
            for transport in list(self._under_way):
                self._loop.call_soon_threadsafe(transport.abort)

    def clear(self) -> None:
        """Let everything pass, and what is held too."""
        self.down = False
        for one in list(self._rules):
            self._drop(one)

    def _drop(self, rule: Rule) -> None:
        with self._lock:
            if rule in self._rules:
                self._rules.remove(rule)
        if rule.gate is not None:
            rule.gate.set()

    def _rule_for(self, method: str, path: str) -> Rule | None:
        with self._lock:
            for one in self._rules:
                if one.takes(method, path):
                    one.met += 1
                    one.arrived.set()
                    return one
        return None

    async def _serve(self, server: uvicorn.Server) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(
            base_url=self._upstream, verify=self._verify, timeout=None, limits=limits
        ) as client:
            self._client = client
            await server.serve()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope["transport"]
        with self._lock:
            self._under_way.add(transport)
        try:
            await self._answer(scope, receive, send)
        except _Broken:
            transport.abort()
        finally:
            with self._lock:
                self._under_way.discard(transport)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        method, path = scope["method"], scope["path"]
        rule = self._rule_for(method, path)
        if self.down:
            raise _Broken
        if rule is not None and rule.status:
            await _answer(send, rule)
            return
        if rule is not None and rule.gate is not None:
            await asyncio.to_thread(rule.gate.wait, 120)
        await self._pass(scope, body, send, lose=rule is not None and rule.lose)

    async def _pass(self, scope: Scope, body: bytes, send: Send, *, lose: bool) -> None:
        assert self._client is not None
        query = scope["query_string"].decode()
        url = scope["raw_path"].decode() + (f"?{query}" if query else "")
        headers = [(name, value) for name, value in scope["headers"] if name not in {b"host", b"connection"}]
        try:
            async with self._client.stream(scope["method"], url, content=body, headers=headers) as answer:
                if lose:
                    await answer.aread()
                    raise _Broken
                kept = [
                    (n.lower(), v)
                    for n, v in answer.headers.raw
                    if n.lower() not in {b"connection", b"transfer-encoding"}
                ]
                await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
                async for piece in answer.aiter_raw():
                    if self.down:
                        raise _Broken
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.TransportError as error:
            raise _Broken from error


class _Broken(Exception):
    """The connection ends without an answer."""


class _Breakable(HttpToolsProtocol):
    """uvicorn's protocol that lets the application break the connection."""

    def on_message_begin(self) -> None:
        """Give the transport along."""
        super().on_message_begin()
        self.scope["transport"] = self.transport  # type: ignore[typeddict-unknown-key]  # ours alone


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, rule: Rule) -> None:
    reasons = {
        409: "Conflict",
        429: "TooManyRequests",
        403: "Forbidden",
        500: "InternalError",
        503: "ServiceUnavailable",
    }
    body = orjson.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reasons.get(rule.status, ""),
            "message": "said by the tests' proxy",
            "code": rule.status,
        }
    )
    headers = [(b"content-type", b"application/json")]
    headers += [(b"retry-after", str(rule.retry_after).encode())] if rule.retry_after else []
    await send({"type": "http.response.start", "status": rule.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
