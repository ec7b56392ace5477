"""A stand-in for kube-apiserver: real HTTP on loopback, real resourceVersions, faults on demand.

For unit tests of `kube/` and of whatever is built on it (ledger, extender, collection):

    with ApiServer() as server:
        cluster = Cluster.from_settings(server.kubeconfig(tmp_path / "kubeconfig"))
        server.add_pod("train", namespace="team-a")
        server.faults.append(Fault("POST", r"/binding$", drop="after"))   # applied, answer lost
        ...
        assert server.pods["team-a", "train"]["spec"]["nodeName"] == "n1"

The rules of the objects are in `tests.fakes.apistore`, with what is left out.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import ssl
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.fakes.apikinds import (
    CRDS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    ApiFault,
    Key,
    Kind,
    Object,
)
from tests.fakes.apiselectors import matcher
from tests.fakes.apistore import Change, Store

CRD_FOLDER = Path(__file__).parents[2] / "docker" / "helm" / "gpuplane" / "crds"


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and path (with query) match the regular expressions.

    `status` answers so without applying; `drop` closes the connection "before" or "after" applying; `stall`
    keeps the request unanswered and unapplied until the event is set. `status` with `drop="after"` applies and then lies.
    """

    method: str
    path: str
    status: int | None = None
    reason: str = ""
    message: str = "injected"
    headers: dict[str, str] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    drop: Literal["", "before", "after"] = ""
    stall: threading.Event | None = None
    times: int = 1


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class ApiServer:
    """Start with `with`, or `start()` and `stop()`: a stopped server refuses connections, and starts again on its port with its objects."""

    def __init__(
        self,
        *,
        token: str = "",
        with_crds: bool = True,
        bookmark_seconds: float = 60.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.store = Store()
        self.token = token
        self.tls = tls
        self.bookmark_seconds = bookmark_seconds
        self.faults: list[Fault] = []
        self.requests: list[Seen] = []
        self.gone_as_http = False
        self.mute_watches = 0  # so many of the next watches are accepted and then say nothing at all
        self.bookmarks_asked = 0
        self.closing = False
        self.connections: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.port = 0
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        if with_crds:
            for path in sorted(CRD_FOLDER.glob("*.yaml")):
                self.store.create(CRDS, "", yaml.safe_load(path.read_text()))

    # -- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.closing = False
        handler = type("BoundHandler", (_Handler,), {"api": self})
        self._http = _Http(("127.0.0.1", self.port), handler)
        self.port = self._http.server_address[1]
        if self.tls is not None:
            self._http.socket = self.tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-apiserver"
        )
        self._thread.start()

    def stop(self) -> None:
        if self._http is None or self._thread is None:
            return
        self.closing = True
        for fault in self.faults:
            if fault.stall is not None:
                fault.stall.set()
        self._http.shutdown()
        self._thread.join()
        self.drop_connections()
        with self.store.changed:
            self.store.changed.notify_all()
        self._http.server_close()
        self._http = self._thread = None

    def drop_connections(self) -> None:
        """Cut every open connection, watches included."""
        with self.lock:
            for open_socket in self.connections:
                try:
                    open_socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # already closed by the other side

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(
        self, path: Path, *, token: str | None = None, cluster: Object | None = None, user: Object | None = None
    ) -> Path:
        """Write a kubeconfig for this server to `path` and give the path back. `cluster` and `user` add fields to their sections."""
        shown = self.token if token is None else token
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url} | (cluster or {})}],
            "users": [{"name": "fake", "user": ({"token": shown} if shown else {}) | (user or {})}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(text))
        return path

    # -- the world

    def _objects(self, kind: Kind) -> Mapping[Key, Object]:
        with self.store.changed:
            return dict(self.store.objects[kind])

    @property
    def pods(self) -> Mapping[Key, Object]:
        """Keyed by (namespace, name), as all but nodes, namespaces and crds."""
        return self._objects(PODS)

    @property
    def leases(self) -> Mapping[Key, Object]:
        return self._objects(LEASES)

    @property
    def events(self) -> Mapping[Key, Object]:
        return self._objects(EVENTS)

    @property
    def gpuclaims(self) -> Mapping[Key, Object]:
        return self._objects(self.store.kind_of("gpu.scheduling", "v1", "gpuclaims"))

    @property
    def nodes(self) -> Mapping[str, Object]:
        return {name: item for (_, name), item in self._objects(NODES).items()}

    @property
    def namespaces(self) -> Mapping[str, Object]:
        return {name: item for (_, name), item in self._objects(NAMESPACES).items()}

    @property
    def crds(self) -> Mapping[str, Object]:
        return {name: item for (_, name), item in self._objects(CRDS).items()}

    def add_namespace(self, name: str) -> None:
        if name not in self.namespaces:
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}})

    def add_pod(
        self, name: str, *, namespace: str = "default", annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None,
        limits: dict[str, str] | None = None, node: str = "", phase: str = "Pending", spec: Object | None = None,
    ) -> Object:  # fmt: skip
        """A pod as the API server would store it; its namespace is made if missing. Returns the object (uid in metadata)."""
        self.add_namespace(namespace)
        body: Object = {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": limits or {}, "requests": limits or {}}}
            ]
        }
        body |= {"nodeName": node} if node else {}
        meta: Object = {"name": name, "annotations": annotations, "labels": labels}
        return self.store.create(
            PODS,
            namespace,
            {"metadata": {k: v for k, v in meta.items() if v}, "spec": body | (spec or {}), "status": {"phase": phase}},
        )

    def set_pod_phase(self, name: str, phase: str, *, namespace: str = "default") -> None:
        body = {"status": {"phase": phase}}
        self.store.patch(PODS, namespace, name, body, content_type="application/merge-patch+json", subresource="status")

    def remove_pod(self, name: str, *, namespace: str = "default") -> None:
        """Gone for good, as after the kubelet's last word."""
        self.store.delete(PODS, namespace, name, {"gracePeriodSeconds": 0})

    def add_node(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        capacity: dict[str, str] | None = None,
        ready: bool = True,
    ) -> Object:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        status = {
            "capacity": capacity or {"cpu": "8"},
            "allocatable": capacity or {"cpu": "8"},
            "conditions": conditions,
        }
        return self.store.create(
            NODES, "", {"metadata": {"name": name, "labels": labels or {}}, "spec": {}, "status": status}
        )

    def remove_node(self, name: str) -> None:
        self.store.delete(NODES, "", name, {})

    def add_gpuclaim(self, name: str, spec: Object, *, namespace: str = "default") -> Object:
        self.add_namespace(namespace)
        return self.store.create(
            self.store.kind_of("gpu.scheduling", "v1", "gpuclaims"),
            namespace,
            {"metadata": {"name": name}, "spec": spec},
        )

    def add_lease(
        self, name: str, holder: str, *, namespace: str = "gpuplane-system", annotations: dict[str, str] | None = None
    ) -> Object:
        """A Lease as a stranger would make it: no labels of ours."""
        self.add_namespace(namespace)
        meta = {"name": name, "annotations": annotations or {}}
        return self.store.create(LEASES, namespace, {"metadata": meta, "spec": {"holderIdentity": holder}})

    def compact(self) -> None:
        """Every resourceVersion and continue token handed out so far is too old from now on."""
        self.store.compact()

    def send_bookmarks(self) -> None:
        """A bookmark on every watch that allows them, now."""
        with self.store.changed:
            self.bookmarks_asked += 1
            self.store.changed.notify_all()

    # -- faults

    def take_mute(self) -> bool:
        with self.lock:
            mute, self.mute_watches = self.mute_watches > 0, max(self.mute_watches - 1, 0)
            return mute

    def take_fault(self, method: str, target: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.method, method) and re.search(fault.path, target):
                    fault.times -= 1
                    return fault
        return None


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128


class _Dropped(Exception):
    """Close the connection without another byte."""


class _Handler(BaseHTTPRequestHandler):
    """One connection. Paths are parsed by hand: the API is regular enough."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: ApiServer

    def setup(self) -> None:
        super().setup()
        with self.api.lock:
            self.api.connections.add(self.connection)

    def finish(self) -> None:
        with self.api.lock:
            self.api.connections.discard(self.connection)
        try:
            super().finish()
        except OSError:
            return  # the client closed first

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name http.server gives it
        """Silent."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (_Dropped, OSError):  # cut by us, or the client left or failed the TLS handshake
            self.close_connection = True

    def serve(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.api.closing:
            raise _Dropped
        self.api.requests.append(
            Seen(self.command, parts.path, query, {k.lower(): v for k, v in self.headers.items()}, body)
        )
        fault = self.api.take_fault(self.command, self.path)
        if fault is not None:
            if fault.stall is not None:
                fault.stall.wait()
                raise _Dropped
            if fault.drop == "before":
                raise _Dropped
            if fault.status is not None and not fault.drop:
                causes = {"causes": [{"reason": cause} for cause in fault.causes]}
                wrong = ApiFault(fault.status, fault.reason, fault.message, details=causes)
                self.answer(fault.status, wrong.status(), fault.headers)
                return
        headers: dict[str, str] = {}
        try:
            self.authenticate()
            code, answer = self.route(parts.path, query, json.loads(body) if body else {})
        except ApiFault as refusal:
            code, answer = refusal.code, refusal.status()
            if refusal.retry_after is not None:
                headers["Retry-After"] = str(refusal.retry_after)
        except ValueError as error:
            code, answer = 400, ApiFault(400, "BadRequest", str(error)).status()
        if fault is not None and fault.drop == "after":
            if fault.status is None:
                raise _Dropped
            code, answer = fault.status, ApiFault(fault.status, fault.reason, fault.message).status()
        if answer is not None:
            self.answer(code, answer, headers)

    def authenticate(self) -> None:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if self.api.token and (kind.lower(), token) != ("bearer", self.api.token):
            raise ApiFault(401, "Unauthorized", "Unauthorized")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 -- the names http.server looks for

    def answer(self, code: int, body: Object, headers: dict[str, str]) -> None:
        missing_route = code == 404 and not body.get("reason") and body.get("kind") == "Status"
        data = b"404 page not found\n" if missing_route else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if missing_route else "application/json")
        if "Accept-Encoding" not in self.headers:
            # nothing said means that any coding will do (RFC 9110, 12.5.3), and proxies on the way ask for this one
            data = gzip.compress(data)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        for key, value in headers.items():
            self.send_header(key, value)
        self._headers_buffer.append(b"\r\n" + data)  # type: ignore[attr-defined]  # one write for head and body
        self.flush_headers()

    def route(self, path: str, query: dict[str, str], body: Any) -> tuple[int, Object | None]:
        """Code and body of the answer; body None when it was streamed already."""
        store, method = self.api.store, self.command
        if path == "/version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3-fake"}
        segments = [part for part in path.split("/") if part]
        if segments[:2] == ["api", "v1"]:
            group, version, rest = "", "v1", segments[2:]
        elif segments[:1] == ["apis"] and len(segments) > 3:
            group, version, rest = segments[1], segments[2], segments[3:]
        else:
            raise ApiFault(404, "", "404 page not found")
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = (*rest, "", "")[:3]
        kind = store.kind_of(group, version, plural)
        if not name:
            if method == "POST":
                return 201, store.create(kind, namespace, body)
            if method == "GET" and query.get("watch") in ("1", "true"):
                self.watch(kind, namespace, query)
                return 200, None
            if method == "GET":
                selectors = {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}
                return 200, store.page(
                    kind, namespace, limit=int(query.get("limit") or 0), token=query.get("continue", ""), **selectors
                )
        elif subresource in ("binding", "eviction") and method == "POST" and kind is PODS:
            (store.bind if subresource == "binding" else store.evict)(namespace, name, body)
            return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        elif subresource and not (subresource == "status" and kind.status):
            raise ApiFault(404, "NotFound", "the server could not find the requested resource")
        elif method == "GET":
            return 200, store.get(kind, namespace, name)
        elif method == "PUT":
            return 200, store.update(kind, namespace, name, body, subresource=subresource)
        elif method == "PATCH":
            kind_of_patch = self.headers.get("Content-Type", "")
            return 200, store.patch(kind, namespace, name, body, content_type=kind_of_patch, subresource=subresource)
        elif method == "DELETE":
            return 200, store.delete(kind, namespace, name, body)
        raise ApiFault(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    # -- watch

    def watch(self, kind: Kind, namespace: str, query: dict[str, str]) -> None:
        """Stream changes until `timeoutSeconds`, then a last bookmark and a clean end, as kube-apiserver does."""
        store = self.api.store
        ends = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        since = int(query.get("resourceVersion") or 0)
        wanted = matcher(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        with store.changed:
            expired = bool(since) and since < store.compacted
        if expired and self.api.gone_as_http:
            raise ApiFault(410, "Expired", f"too old resource version: {since} ({store.version})")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if expired:
            self.send_event(
                "ERROR", ApiFault(410, "Expired", f"too old resource version: {since} ({store.version})").status()
            )
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.api.take_mute():
            with store.changed:
                store.changed.wait_for(lambda: self.api.closing)
            raise _Dropped
        asked, next_bookmark = self.api.bookmarks_asked, time.monotonic() + self.api.bookmark_seconds
        if not since:
            with store.changed:
                since, items = (
                    store.version,
                    store.select(kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")),
                )
            for item in items:
                self.send_event("ADDED", item)
        while True:
            with store.changed:
                while True:
                    lost = since < store.compacted
                    news = store.log[bisect_right(store.log, since, key=attrgetter("version")) :]
                    now = time.monotonic()
                    due = bookmarks and (self.api.bookmarks_asked > asked or now >= next_bookmark)
                    if self.api.closing or lost or news or due or now >= ends:
                        break
                    store.changed.wait(min(next_bookmark, ends) - now)
                reached = store.version
            if self.api.closing:
                raise _Dropped
            if lost:
                self.send_event(
                    "ERROR", ApiFault(410, "Expired", f"too old resource version: {since} ({reached})").status()
                )
                break
            for change in news:
                since = change.version
                if change.kind == kind and namespace in ("", change.object["metadata"].get("namespace", "")):
                    self.send_change(change, wanted)
            if now >= ends or due:
                asked, next_bookmark = self.api.bookmarks_asked, now + self.api.bookmark_seconds
                if bookmarks:
                    meta = {"resourceVersion": str(max(since, reached)), "creationTimestamp": None}
                    self.send_event("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta})
            if now >= ends:
                break
        self.wfile.write(b"0\r\n\r\n")

    def send_change(self, change: Change, wanted: Any) -> None:
        """An object that enters or leaves the selector is ADDED or DELETED for this watcher."""
        before = change.before is not None and wanted(change.before)
        after = change.type != "DELETED" and wanted(change.object)
        if after:
            self.send_event("MODIFIED" if before else "ADDED", change.object)
        elif before:
            self.send_event("DELETED", change.object)

    def send_event(self, kind: str, item: Object) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
