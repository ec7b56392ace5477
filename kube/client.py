"""The client of the Kubernetes API: requests with retries and typed errors, answers decoded by msgspec.

One `Cluster` per process is enough; threads share it. Invariants:
- A request is repeated only after a temporary error, a bounded number of times, with jitter.
- A write that may have been applied is repeated only if it is `idempotent`.
- Once the outcome of an attempt is unknown, the error says so even if a later attempt did not get through.
- Every request has a deadline (`kube.transport`); `timeout=None` means the default.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar
from urllib.parse import urlencode

import msgspec
import structlog
import urllib3
from urllib3.exceptions import HTTPError

from kube.configured import ConfigurationSource
from kube.errors import (
    Denied,
    Gone,
    OutcomeUnknown,
    TemporaryKubeError,
    from_answer,
    from_transport,
)
from kube.http1 import Request
from kube.listing import Listing, decode, decode_chunk
from kube.retry import RetryRule
from kube.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
Query = Mapping[str, str | int | bool | None]

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
PAGE_SIZE: Final = 500

log = structlog.get_logger(__name__)


class Stream:
    """The lines of a streamed answer. Another thread may end it with `interrupt`."""

    def __init__(self, response: urllib3.BaseHTTPResponse, *, request: str) -> None:
        self._response = response
        self._request = request

    def lines(self) -> Iterator[bytes]:
        """Each line as it arrives. Raises `Unreachable` when the connection breaks or falls silent."""
        rest = b""
        try:
            for piece in self._response.stream(1 << 16):
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line for line in whole if line)
        except HTTPError as error:
            raise from_transport(error, request=self._request, write=False) from error

    def interrupt(self) -> None:
        """Unblock a reader in `lines`, which ends or raises `Unreachable`."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # the stream has ended


def _blocking(
    method: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Cluster, P], T]:
    """The same method for threads, which wait for the result."""

    @wraps(method)
    def run(self: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self, *args, **kwargs))

    return run


class Cluster:
    """The API server of a cluster."""

    def __init__(
        self,
        source: ConfigurationSource,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[bool]] | None = None,
    ) -> None:
        """Raises `NotConfigured`. `pause(seconds)` waits between attempts, and returns True when the client closes."""
        self._timeout_seconds = timeout_seconds
        self._retry = RetryRule()
        self.chance = chance
        self.clock = clock
        self._closing = threading.Event()
        self._at_close: list[Callable[[], None]] = []
        self._transport = Transport(source, clock=clock)
        self._pause = pause or self._transport.closed_within

    def close(self) -> None:
        """End waits between retries and close idle connections."""
        self._closing.set()
        for callback in self._at_close:
            callback()
        self._transport.close()

    def at_close(self, callback: Callable[[], None]) -> None:
        """Call this when the client closes."""
        self._at_close.append(callback)

    def close_here(self) -> None:
        """Close the connections of the event loop that runs in this thread."""
        self._transport.close_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self, seconds: float) -> bool:
        """Wait in a thread; True, at once, when the client closes."""
        return self._closing.wait(seconds)

    async def apause(self, seconds: float) -> bool:
        """`pause` for a coroutine."""
        return await self._pause(seconds)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses this client, and block the calling thread until it returns or raises."""
        return self._transport.run(work)

    async def arequest(
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
        before: float = math.inf,
    ) -> bytes:
        """The body of the answer. Raises `kube.errors`.

        `body` is encoded as JSON unless it is bytes. `timeout`: seconds for connecting, and then for the answer to a
        write or each wait for bytes of a read. `idempotent`: retry also after a lost answer; by default for reads.
        `retry=False`: one attempt. `before`: time of the event loop after which nothing is sent.
        """
        request = Request(
            method=method,
            target=path + _query_text(query),
            body=body if body is None or isinstance(body, bytes) else msgspec.json.encode(body),
            content_type=content_type,
            seconds=self._timeout_seconds if timeout is None else timeout,
            before=before,
        )
        repeatable = not request.write if idempotent is None else idempotent
        unknown: OutcomeUnknown | None = None
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(request)
            except TemporaryKubeError as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                delay = self._retry.delay_seconds(attempt=attempt, error=error, chance=self.chance())
                hopeless = not retry or delay is None or (unknown is not None and not repeatable)
                if hopeless or await self._pause(delay or 0.0):
                    if unknown is not None and unknown is not error:
                        raise unknown from error
                    raise
                log.info("kube.retry", request=error.request, error=error.message, attempt=attempt, delay_seconds=delay)
            except Denied as error:
                if unknown is not None:
                    raise unknown from error
                raise

    request = _blocking(arequest)

    @contextmanager
    def stream(self, path: str, *, query: Query, silence_seconds: float) -> Iterator[Stream]:
        """A GET whose answer is read line by line, without retries; `silence_seconds` bounds each wait for bytes."""
        with self._transport.stream(path + _query_text(query), silence_seconds=silence_seconds) as response:
            yield Stream(response, request=f"GET {path}")

    async def aget(self, path: str, kind: type[T], *, timeout: float | None = None, retry: bool = True) -> T:
        """One object."""
        answer = await self.arequest("GET", path, timeout=timeout, retry=retry)
        return decode(answer, kind, request=f"GET {path}")

    get = _blocking(aget)

    def list(
        self,
        path: str,
        kind: type[T],
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout: float | None = None,
    ) -> Listing[T]:
        """Every object of a collection at one resourceVersion, fetched in pages.

        If the snapshot expires between two pages (410), everything is fetched again without pages.
        """
        query: dict[str, str | int | None] = {"labelSelector": label_selector, "fieldSelector": field_selector}

        def page(more: Query) -> Listing[T]:
            body = self.request("GET", path, query={**query, **more}, timeout=timeout)
            return decode_chunk(body, kind, request=f"GET {path}")

        found = page({"limit": PAGE_SIZE})
        while found.next_token:
            try:
                chunk = page({"limit": PAGE_SIZE, "continue": found.next_token})
            except Gone:
                found = page({})
                continue
            found.items.extend(chunk.items)
            found.unreadable.extend(chunk.unreadable)
            found.next_token = chunk.next_token
        return found

    def create(
        self, path: str, body: object, kind: type[T], *, idempotent: bool = False, timeout: float | None = None
    ) -> T:
        """Create an object; the object as stored. Raises `AlreadyExists`, `OutcomeUnknown`."""
        answer = self.request("POST", path, body=body, idempotent=idempotent, timeout=timeout)
        return decode(answer, kind, request=f"POST {path}")

    async def apatch(
        self,
        path: str,
        body: object,
        kind: type[T],
        *,
        content_type: str = MERGE_PATCH,
        idempotent: bool = True,
        timeout: float | None = None,
    ) -> T:
        """Patch an object or a subresource. Pass `idempotent=False` where the patch carries a resourceVersion."""
        answer = await self.arequest(
            "PATCH", path, body=body, content_type=content_type, idempotent=idempotent, timeout=timeout
        )
        return decode(answer, kind, request=f"PATCH {path}")

    patch = _blocking(apatch)

    async def adelete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Delete an object under these preconditions; with a uid it is retried also after a lost answer.

        `grace_seconds`: of a pod; 0 removes it at once, without waiting for its kubelet.

        Raises `NotFoundInCluster` when it is gone already, `ConflictInCluster` when a precondition fails.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in preconditions.items() if value},
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self.arequest("DELETE", path, body=body, idempotent=uid is not None, timeout=timeout)

    delete = _blocking(adelete)

    async def _once(self, request: Request) -> bytes:
        answer = await self._transport.send(request)
        if answer.status < 300:
            return answer.data
        raise from_answer(
            code=answer.status, body=answer.data, headers=answer.headers, request=request.name, write=request.write
        )


def _query_text(query: Query | None) -> str:
    """`?a=b`, without None values, booleans in lower case."""
    given = {key: value for key, value in (query or {}).items() if value is not None}
    if not given:
        return ""
    return "?" + urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()})
