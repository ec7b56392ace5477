"""HTTP of the stand-in API server: requests are routed to the store, faults strike, watches are streamed.

`tests.fakes.apiserver` starts it; what an answer says is decided in `tests.fakes.apistore`.
"""

from __future__ import annotations

import gzip
import socket
import time
from bisect import bisect_right
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import orjson

from tests.fakes.apikinds import PODS, ApiFault, Kind, Object
from tests.fakes.apiselectors import matcher
from tests.fakes.apistore import Change

if TYPE_CHECKING:
    # the server itself imports this module
    from tests.fakes.apiserver import ApiServer, Fault


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class HttpServer(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128


class Dropped(Exception):
    """Close the connection without another byte."""


class Handler(BaseHTTPRequestHandler):
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

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
        """Silent."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (Dropped, OSError):  # cut by us, or the client left or failed the TLS handshake
            self.close_connection = True

    def serve(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.api.closing:
            raise Dropped
        self.api.requests.append(
            Seen(self.command, parts.path, query, {k.lower(): v for k, v in self.headers.items()}, body)
        )
        fault = self.api.take_fault(self.command, self.path)
        if fault is not None and self.struck(fault):
            return
        code, answer, headers = self.apply(parts.path, query, body)
        if fault is not None and fault.late is not None:
            fault.late.leave(code)
        if fault is not None and fault.drop == "after":
            if fault.status is None:
                raise Dropped
            code, answer = fault.status, ApiFault(fault.status, fault.reason, fault.message).status()
        if answer is not None:
            self.answer(code, answer, headers)

    def struck(self, fault: Fault) -> bool:
        """Whether `fault` answered the request in place of the store; raises where it gets no answer at all."""
        if fault.stall is not None:
            fault.stall.wait()
            raise Dropped
        if fault.late is not None:
            if fault.drop == "before":
                self.connection.shutdown(socket.SHUT_RDWR)
            if not fault.late.enter():
                raise Dropped
            return False
        if fault.drop == "before":
            raise Dropped
        if fault.status is not None and not fault.drop:
            causes = {"causes": [{"reason": cause} for cause in fault.causes]}
            wrong = ApiFault(fault.status, fault.reason, fault.message, details=causes)
            self.answer(fault.status, wrong.status(), fault.headers)
            return True
        return False

    def apply(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Object | None, dict[str, str]]:
        """Code, body and headers of the answer that the store gives; body None when it was streamed already."""
        try:
            self.authenticate()
            return (*self.route(path, query, orjson.loads(body) if body else {}), {})
        except ApiFault as refusal:
            retry = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
            return refusal.code, refusal.status(), retry
        except ValueError as error:
            return 400, ApiFault(400, "BadRequest", str(error)).status(), {}

    def authenticate(self) -> None:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if self.api.token and (kind.lower(), token) != ("bearer", self.api.token):
            raise ApiFault(401, "Unauthorized", "Unauthorized")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 - the names http.server looks for

    def answer(self, code: int, body: Object, headers: dict[str, str]) -> None:
        missing_route = code == 404 and not body.get("reason") and body.get("kind") == "Status"
        data = b"404 page not found\n" if missing_route else orjson.dumps(body)
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
        if path == "/apis/authentication.k8s.io/v1/tokenreviews" and method == "POST":
            return 201, body | {"status": self.api.review(body["spec"])}
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
            raise Dropped
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
                raise Dropped
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
        line = orjson.dumps({"type": kind, "object": item}) + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
