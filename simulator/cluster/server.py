"""The HTTP of the simulated API server: an ASGI application over the store, served by uvicorn on loopback.

Invariants: every request needs the token of the kubeconfig, which only the owner of the data folder can read; a watch
ends after `timeoutSeconds` with a bookmark; clients that read slowly hold up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import structlog
import uvicorn

from simulator.cluster.kinds import PODS, Kind, Object, Refusal
from simulator.cluster.selectors import Test, matcher
from simulator.cluster.store import Change, Store
from simulator.cluster.tokens import Tokens
from simulator.jsonpatch import BadPatch, apply_patch

HOST: Final = "127.0.0.1"
WATCH_SECONDS: Final = 1800.0
BOOKMARK_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 2
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"

log = structlog.get_logger(__name__)


class Request(msgspec.Struct, frozen=True):
    """One request. `query`: the last value of each name."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The decoded body. Raises Refusal."""
        try:
            return msgspec.json.decode(self.body) if self.body else {}
        except msgspec.DecodeError as error:
            raise Refusal(400, "BadRequest", str(error)) from error


class Target(msgspec.Struct, frozen=True):
    """What a path names; `name` is empty for a collection."""

    kind: Kind
    namespace: str
    name: str
    subresource: str


class ApiServer:
    """The application. `token`: of its only user."""

    def __init__(self, store: Store, *, token: str) -> None:
        self.store = store
        self.token = token
        self.tokens = Tokens(token.encode())
        self._closing = False

    def close(self) -> None:
        """End every watch."""
        self._closing = True
        self.store.news.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        request = Request(scope["method"], scope["path"], query, headers.get("content-type", ""), body)
        try:
            self._authenticate(request.path, headers.get("authorization", ""))
            target = self._target(request)
            if target is not None and not target.name and query.get("watch") in ("1", "true"):
                await self._watch(target, query, send)
                return
            code, answer = self._answer(request, target)
        except Refusal as refusal:
            code, answer = refusal.code, refusal.status()
        await _send(send, code, msgspec.json.encode(answer), more=False)

    def _authenticate(self, path: str, credentials: str) -> None:
        allowed = secrets.compare_digest(credentials.encode(), f"Bearer {self.token}".encode())
        if path != "/readyz" and not allowed:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def _target(self, request: Request) -> Target | None:
        """What the path names; None for the paths that are no object. Raises Refusal."""
        if request.path in ("/version", "/readyz", REVIEWS):
            return None
        parts = [part for part in request.path.split("/") if part]
        if parts[:2] == ["api", "v1"]:
            group, version, rest = "", "v1", parts[2:]
        elif parts[:1] == ["apis"] and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise Refusal(404, "", "404 page not found")
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = (*rest, "", "", "")[:3]
        return Target(self.store.kind_of(group, version, plural), namespace, name, subresource)

    def _answer(self, request: Request, target: Target | None) -> tuple[int, Object]:
        """Status and body. Raises Refusal."""
        if target is None:
            if request.path != REVIEWS:
                return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3-simulated"}
            review = request.json()
            status = self.tokens.review(review["spec"]["token"], review["spec"].get("audiences") or [])
            return 201, {**review, "status": status}
        kind, namespace, name, store = target.kind, target.namespace, target.name, self.store
        if request.method == "GET" and not name:
            return 200, self._list(target, request.query)
        if request.method == "GET":
            return 200, store.get(kind, namespace, name)
        if request.method == "POST" and not name:
            return 201, store.create(kind, namespace, request.json())
        if request.method == "POST" and kind is PODS and target.subresource in ("binding", "eviction"):
            if target.subresource == "binding":
                store.bind(namespace, name, request.json())
            else:
                self._delete(target, request.json().get("deleteOptions") or {})
            return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        if request.method == "PUT" and name:
            return 200, store.update(kind, namespace, name, request.json(), subresource=target.subresource)
        if request.method == "PATCH" and name:
            return 200, self._patch(target, request)
        if request.method == "DELETE" and name:
            return 200, self._delete(target, request.json())
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _list(self, target: Target, query: dict[str, str]) -> Object:
        """Everything in one answer, whatever limit is asked for, as an API server may."""
        kind, store = target.kind, self.store
        return {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": str(store.version)},
            "items": store.list(kind, target.namespace, _wanted(query)),
        }

    def _patch(self, target: Target, request: Request) -> Object:
        kind, namespace, name, subresource = target.kind, target.namespace, target.name, target.subresource
        if request.content_type == MERGE_PATCH:
            return self.store.merge(kind, namespace, name, request.json(), subresource=subresource)
        if request.content_type != JSON_PATCH:
            raise Refusal(415, "UnsupportedMediaType", f"a patch of this type is not known: {request.content_type}")
        try:
            new = apply_patch(self.store.get(kind, namespace, name), request.json())
        except BadPatch as error:
            raise Refusal(422, "Invalid", f"the server rejected our request: {error}", kind=kind, name=name) from error
        return self.store.update(kind, namespace, name, new, subresource=subresource)

    def _delete(self, target: Target, options: Object) -> Object:
        only = options.get("preconditions") or {}
        return self.store.delete(
            target.kind,
            target.namespace,
            target.name,
            uid=only.get("uid") or "",
            version=only.get("resourceVersion") or "",
            grace=options.get("gracePeriodSeconds"),
        )

    async def _watch(self, target: Target, query: dict[str, str], send: Any) -> None:
        """Stream changes until `timeoutSeconds`, then a last bookmark."""
        kind, namespace, store = target.kind, target.namespace, self.store
        wanted = _wanted(query)
        ends = time.monotonic() + float(query.get("timeoutSeconds") or WATCH_SECONDS)
        marked = time.monotonic()
        reached = int(query.get("resourceVersion") or 0)
        lines: list[bytes] = []
        if not reached:
            reached = store.version
            lines = [_event("ADDED", item) for item in store.list(kind, namespace, wanted)]
        await _send(send, 200, b"".join(lines), more=True)
        while True:
            news = store.news
            try:
                changes = store.since(reached)
            except Refusal as refusal:
                await _more(send, _event("ERROR", refusal.status()), more=False)
                return
            reached = store.version
            lines = [line for change in changes if change.kind == kind for line in _told(change, namespace, wanted)]
            now = time.monotonic()
            if now >= min(ends, marked + BOOKMARK_SECONDS):
                marked = now
                meta = {"resourceVersion": str(reached)}
                lines.append(_event("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}))
            over = now >= ends or self._closing
            if lines or over:
                await _more(send, b"".join(lines), more=not over)
            if over:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(min(ends, marked + BOOKMARK_SECONDS) - time.monotonic(), 0.0)):
                    await news.wait()


def _wanted(query: dict[str, str]) -> Test:
    return matcher(query.get("labelSelector", ""), query.get("fieldSelector", ""))


def _told(change: Change, namespace: str, wanted: Test) -> Iterator[bytes]:
    """The event for one watch: an object that enters or leaves its selector is ADDED or DELETED."""
    if namespace not in ("", change.object["metadata"].get("namespace", "")):
        return
    before = change.before is not None and wanted(change.before)
    if change.type != "DELETED" and wanted(change.object):
        yield _event("MODIFIED" if before else "ADDED", change.object)
    elif before:
        yield _event("DELETED", change.object)


def _event(type_: str, item: Object) -> bytes:
    return msgspec.json.encode({"type": type_, "object": item}) + b"\n"


async def _send(send: Any, code: int, body: bytes, *, more: bool) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [] if more else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await _more(send, body, more=more)


async def _more(send: Any, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


class Serving(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve(application: ApiServer, listener: socket.socket) -> None:
    """Serve until cancelled; watches are ended then."""
    config = uvicorn.Config(
        application,
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Serving(config)
    work = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        server.should_exit = True
        application.close()
        await work
        raise


class Address(msgspec.Struct, frozen=True):
    """Where the API server listens, and the token of its user."""

    port: int
    token: str


def open_listener(kubeconfig: Path) -> tuple[socket.socket, Address]:
    """A listener, and its address: the kubeconfig's own where there is one and its port is free. Writes the file."""
    before = _address_of(kubeconfig)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, before.port if before is not None else 0))
    except OSError:
        listener.bind((HOST, 0))
    listener.listen(256)
    address = Address(listener.getsockname()[1], before.token if before is not None else secrets.token_urlsafe(32))
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "simulated",
        "clusters": [{"name": "simulated", "cluster": {"server": f"http://{HOST}:{address.port}"}}],
        "users": [{"name": "gpuplane", "user": {"token": address.token}}],
        "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "gpuplane"}}],
    }
    fresh = kubeconfig.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(text, indent=1))
    fresh.replace(kubeconfig)
    return listener, address


def _address_of(kubeconfig: Path) -> Address | None:
    try:
        known = json.loads(kubeconfig.read_text())
        server, token = known["clusters"][0]["cluster"]["server"], known["users"][0]["user"]["token"]
        return Address(int(server.rpartition(":")[2]), token)
    except (FileNotFoundError, ValueError, KeyError, IndexError):
        return None
