"""The one client of the Kubernetes API: verbs over raw bytes, decoded by msgspec, with typed errors and careful retries.

Every other module of this room takes a `Cluster`; one per process is enough, threads share it. Kept true:
- a request is repeated only after a temporary error, a bounded number of times, with jitter;
- a write that may have been applied is repeated only where repeating cannot do harm (`idempotent`);
- once an attempt's outcome is unknown, the error says so even if a later attempt did not get through;
- every request has a deadline (connecting, and each wait for bytes); `timeout=None` means the default, never "for ever".
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec
import structlog
import urllib3
from urllib3.exceptions import HTTPError

from kube.connection import ConfigurationSource, Connection, configuration_source
from kube.direct import Answer
from kube.errors import (
    Denied,
    Gone,
    KubeError,
    NotConfigured,
    OutcomeUnknown,
    PermanentKubeError,
    TemporaryKubeError,
    Throttled,
    from_answer,
    from_transport,
)
from kube.listing import Chunk, Listing, decode, decode_chunk

T = TypeVar("T")
A = TypeVar("A", bound="Answer | urllib3.BaseHTTPResponse")
Query = Mapping[str, str | int | bool | None]

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
PAGE_SIZE: Final = 500
RELOAD_SECONDS: Final = 5.0
"""Refused credentials are read anew at most this often."""

log = structlog.get_logger(__name__)


class RetryRule(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long apart: attempt n waits between half and all of base · 2ⁿ⁻¹ seconds, at most `cap_seconds`.

    A Retry-After longer than the cap is not waited for, nor is a disruption budget: the error goes to the caller,
    who has the time in `retry_after`.
    """

    attempts: int = 4
    base_seconds: float = 0.1
    cap_seconds: float = 2.0

    def delay_seconds(self, *, attempt: int, error: TemporaryKubeError, chance: float) -> float | None:
        """Seconds to wait after failed attempt number `attempt` (from 1), or None to give up. `chance` is in [0, 1)."""
        if attempt >= self.attempts:
            return None
        backoff = min(self.base_seconds * 2.0 ** (attempt - 1), self.cap_seconds)
        if isinstance(error, Throttled) and error.by_disruption_budget:
            return None
        if isinstance(error, Throttled) and error.retry_after is not None:
            if error.retry_after > self.cap_seconds:
                return None
            return error.retry_after + self.base_seconds * chance
        return backoff * (0.5 + chance / 2)


class _Version(msgspec.Struct, rename="camel"):
    git_version: str


class Stream:
    """The lines of an answer that comes bit by bit. `interrupt` may be called from another thread and ends it."""

    def __init__(self, response: urllib3.BaseHTTPResponse, *, request: str) -> None:
        self._response = response
        self._request = request

    def lines(self) -> Iterator[bytes]:
        """Each line as it arrives, without its end. Raises `Unreachable` when the connection breaks or falls silent."""
        rest = b""
        try:
            for piece in self._response.stream(1 << 16):
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line for line in whole if line)
        except HTTPError as error:
            raise from_transport(error, request=self._request, write=False) from error

    def interrupt(self) -> None:
        """Make a reader that is blocked in `lines` come back, with an end or an `Unreachable`."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # the stream has ended by itself


class Cluster:
    """An API server as gpuplane sees it."""

    def __init__(
        self,
        source: ConfigurationSource,
        *,
        pool_size: int = 64,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retry: RetryRule | None = None,
        agent: str = "gpuplane",
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """`pool_size`: connections kept alive, as many as binds run at once. `pause(seconds)` waits, and is True when we close."""
        self._source = source
        self._pool_size = pool_size
        self._timeout_seconds = timeout_seconds
        self._retry = retry or RetryRule()
        self._agent = agent
        self.chance = chance
        self.clock = clock
        self._closing = threading.Event()
        self._pause = pause or self._closing.wait
        self._lock = threading.Lock()
        self._reloaded_at = float("-inf")
        self._connection = self._connect()

    @classmethod
    def from_settings(
        cls, kubeconfig: Path | None, *, pool_size: int = 64, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Cluster:
        """The cluster of a kubeconfig file, or with None the one that this process runs in. Raises `NotConfigured`."""
        return cls(configuration_source(kubeconfig), pool_size=pool_size, timeout_seconds=timeout_seconds)

    @property
    def connection(self) -> Connection:
        """That of now; another one after refused credentials were read anew."""
        return self._connection

    def close(self) -> None:
        """End waits between retries and close idle connections."""
        self._closing.set()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self, seconds: float) -> bool:
        """Wait between two tries of a caller's own; True when we close, so that nobody waits for nothing."""
        return self._pause(seconds)

    # verbs over bytes

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object | None = None,
        timeout: float | None = None,
        content_type: str = JSON,
        idempotent: bool | None = None,
        retry: bool = True,
    ) -> bytes:
        """The body of the answer.

        `body`: bytes as they are, anything else is encoded as JSON. `idempotent`: doing it twice is as good as once,
        so a lost answer is tried again; by default only reads are. `retry=False`: one attempt, whatever happens.
        Raises the tree of `kube.errors`.
        """
        target = path + _query_text(query)
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        repeatable = _is_read(method) if idempotent is None else idempotent
        unknown: OutcomeUnknown | None = None
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._once(method, target, data, content_type, timeout)
            except TemporaryKubeError as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                delay = self._retry.delay_seconds(attempt=attempt, error=error, chance=self.chance())
                hopeless = not retry or delay is None or (unknown is not None and not repeatable)
                if hopeless or self._pause(delay or 0.0):
                    if unknown is not None and unknown is not error:
                        raise unknown from error
                    raise
                log.info("kube.retry", request=error.request, error=error.message, attempt=attempt, delay_seconds=delay)
            except Denied as error:
                if unknown is not None:
                    raise unknown from error
                raise

    @contextmanager
    def stream(self, path: str, *, query: Query, silence_seconds: float) -> Iterator[Stream]:
        """A GET whose answer is read line by line; more than `silence_seconds` without a byte breaks it. No retries."""
        request = f"GET {path}"
        target = path + _query_text(query)
        response = self._sent("GET", target, lambda server: server.stream(target, timeout_seconds=silence_seconds))
        try:
            if response.status >= 300:
                raise from_answer(
                    code=response.status, body=response.read(), headers=response.headers, request=request, write=False
                )
            yield Stream(response, request=request)
        except HTTPError as error:
            raise from_transport(error, request=request, write=False) from error
        finally:
            response.close()

    # verbs over objects

    def get(self, path: str, kind: type[T], *, timeout: float | None = None, retry: bool = True) -> T:
        """One object. Raises `NotFoundInCluster` and the rest of the tree."""
        return decode(self.request("GET", path, timeout=timeout, retry=retry), kind, request=f"GET {path}")

    def list(
        self,
        path: str,
        kind: type[T],
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = PAGE_SIZE,
        timeout: float | None = None,
    ) -> Listing[T]:
        """Every object of a collection, as one consistent picture, fetched in pages of `page_size`.

        Where the snapshot expires between two pages (410) everything is asked for once more, in one piece.
        """
        query: dict[str, str | int | None] = {"labelSelector": label_selector, "fieldSelector": field_selector}

        def page(more: Query) -> Chunk[T]:
            body = self.request("GET", path, query={**query, **more}, timeout=timeout)
            return decode_chunk(body, kind, request=f"GET {path}")

        chunk = page({"limit": page_size})
        found = Listing(chunk.items, chunk.resource_version, chunk.unreadable)
        while chunk.next_token:
            try:
                chunk = page({"limit": page_size, "continue": chunk.next_token})
            except Gone:
                chunk = page({})
                found = Listing([], chunk.resource_version, [])
            found.items.extend(chunk.items)
            found.unreadable.extend(chunk.unreadable)
        return found

    def create(
        self, path: str, body: object, kind: type[T], *, idempotent: bool = False, timeout: float | None = None
    ) -> T:
        """The object as stored. Raises `AlreadyExists`, `OutcomeUnknown`, and the rest of the tree."""
        answer = self.request("POST", path, body=body, idempotent=idempotent, timeout=timeout)
        return decode(answer, kind, request=f"POST {path}")

    def replace(self, path: str, body: object, kind: type[T], *, timeout: float | None = None) -> T:
        """PUT of a whole object; a resourceVersion inside is a precondition. Raises `ConflictInCluster`, `OutcomeUnknown`."""
        return decode(self.request("PUT", path, body=body, timeout=timeout), kind, request=f"PUT {path}")

    def patch(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        content_type: str = MERGE_PATCH,
        idempotent: bool = True,
        timeout: float | None = None,
    ) -> T:
        """Change an object, or its status by the path of that subresource.

        By default a merge patch without a resourceVersion, which may be sent twice; pass `idempotent=False` for one
        that carries a precondition.
        """
        answer = self.request(
            "PATCH", path, body=body, content_type=content_type, idempotent=idempotent, timeout=timeout
        )
        return decode(answer, kind, request=f"PATCH {path}")

    def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Delete one object under the preconditions given. With a uid a lost answer is tried again, since it can hit no other object.

        Raises `NotFoundInCluster` when it is gone already, `ConflictInCluster` when a precondition fails.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in preconditions.items() if value} or None,
            "gracePeriodSeconds": grace_seconds,
        }
        body = {key: value for key, value in options.items() if value is not None}
        self.request("DELETE", path, body=body, idempotent=uid is not None, timeout=timeout)

    # is anybody there

    def version(self, *, timeout: float | None = None) -> str:
        """The server's version, such as `v1.36.3`; one attempt. Raises the tree of `kube.errors`."""
        body = self.request("GET", "/version", timeout=timeout, retry=False)
        return decode(body, _Version, request="GET /version").git_version

    def alive(self, *, timeout: float = 2.0) -> bool:
        """Whether the API server answers us within `timeout` seconds; why not is logged."""
        try:
            self.version(timeout=timeout)
        except KubeError as error:
            log.warning("kube.not_alive", error=str(error), permanent=isinstance(error, PermanentKubeError))
            return False
        return True

    # one attempt

    def _once(self, method: str, target: str, data: bytes | None, content_type: str, timeout: float | None) -> bytes:
        seconds = self._timeout_seconds if timeout is None else timeout
        response = self._sent(
            method,
            target,
            lambda server: server.send(method, target, body=data, content_type=content_type, timeout_seconds=seconds),
        )
        if response.status < 300:
            return response.data
        request = f"{method} {target.partition('?')[0]}"
        raise from_answer(
            code=response.status,
            body=response.data,
            headers=response.headers,
            request=request,
            write=not _is_read(method),
        )

    def _sent(self, method: str, target: str, ask: Callable[[Connection], A]) -> A:
        """Ask once; refused credentials (401: surely not applied) are read anew and tried a second time."""
        for last in (False, True):
            connection = self._connection
            try:
                response = ask(connection)
            except HTTPError as error:
                request = f"{method} {target.partition('?')[0]}"
                raise from_transport(error, request=request, write=not _is_read(method)) from error
            if response.status != 401 or last or not self._renewed(connection):
                break
            response.close()
        return response

    def _connect(self) -> Connection:
        return Connection(self._source(), pool_size=self._pool_size, agent=self._agent)

    def _renewed(self, used: Connection) -> bool:
        """Whether there are other credentials than those `used`: read by another thread meanwhile, or by us now."""
        with self._lock:
            if self._connection is used:
                now = self.clock()
                if now - self._reloaded_at < RELOAD_SECONDS:
                    return False
                self._reloaded_at = now
                try:
                    self._connection = self._connect()  # requests under way end on the old one
                except NotConfigured as error:  # the file is being replaced: the refusal stands for this request
                    log.warning("kube.credentials_unreadable", error=str(error))
                    return False
                log.info("kube.credentials_reloaded")
            return True


def _is_read(method: str) -> bool:
    return method in ("GET", "HEAD")


def _query_text(query: Query | None) -> str:
    """`?a=b`, without what is None, and with the API's spelling of booleans."""
    told = {key: value for key, value in (query or {}).items() if value is not None}
    if not told:
        return ""
    return "?" + urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in told.items()})
