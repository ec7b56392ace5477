"""Sends requests to slots, over connections that are kept for moments, and reads answers piece by piece.

Called by `app`. aiohttp carries them (docs/adr/0023-gateway.md). Invariants: an answer is read no further than it is
passed on; no cookie, proxy, redirect or content coding; a connection is not reused once the runtime may be closing it.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import aiohttp

from gpuplane.listeners.gateway.flights import SlotLost
from gpuplane.listeners.gateway.replies import GatewayRefusal
from inference.dispatch.records import Place

CONNECT_SECONDS: Final = 5.0
KEEP_SECONDS: Final = 3.0
"""Idle time of a connection. uvicorn, which serves most runtimes, closes after 5 s."""
ANSWER_SECONDS: Final = 3600.0
"""For a whole answer."""
_LOST: Final = (
    *(aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError),
    aiohttp.http_exceptions.HttpProcessingError,
)


class Answer:
    """A runtime's answer of which the first piece has come. `first` is empty for an answer without a body."""

    __slots__ = ("_response", "_silent_seconds", "first", "headers", "status", "streams")

    def __init__(self, response: aiohttp.ClientResponse, first: bytes, silent_seconds: float) -> None:
        self._response = response
        self._silent_seconds = silent_seconds
        self.first = first
        self.status = response.status
        self.streams = response.content_type == "text/event-stream"
        self.headers = [(b"content-type", _content_type(response)), (b"x-content-type-options", b"nosniff")]
        if self.streams:
            self.headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        elif response.content_length is not None:
            self.headers.append((b"content-length", b"%d" % response.content_length))

    async def more(self) -> bytes:
        """The next piece, as it comes; empty at the end. Raises SlotLost."""
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise SlotLost(f"the slot has sent nothing for {self._silent_seconds:.0f} s") from error
        except _LOST as error:
            raise SlotLost("the slot closed the connection within its answer") from error

    def close(self) -> None:
        """Give the connection back, or close it where the answer is not complete: the runtime then stops."""
        self._response.close()


class Upstream:
    """The clients of one event loop."""

    def __init__(self, *, silent_seconds: float) -> None:
        """`silent_seconds`: how long a runtime may send nothing."""
        self._silent_seconds = silent_seconds
        self._session: aiohttp.ClientSession | None = None

    async def send(self, place: Place, path: str, body: bytes, *, request_id: UUID) -> Answer:
        """The answer, once its first piece is there. Raises SlotLost if another slot may be asked, GatewayRefusal."""
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": str(request_id),
        }
        response: aiohttp.ClientResponse | None = None
        answer: Answer | None = None
        try:
            response = await self._client().post(
                f"http://{place.address}{path}", data=body, headers=headers, allow_redirects=False
            )
            first = await response.content.readany()
            if response.status == 503:
                raise SlotLost(f"slot {place.slot} takes no requests: {_text(first)}")
            answer = Answer(response, first, self._silent_seconds)
        except aiohttp.ConnectionTimeoutError as error:
            raise SlotLost(f"slot {place.slot} does not answer at {place.address}") from error
        except TimeoutError as error:
            raise GatewayRefusal(504, f"slot {place.slot} has sent nothing for {self._silent_seconds:.0f} s") from error
        except _LOST as error:
            raise SlotLost(f"slot {place.slot} at {place.address}: {str(error) or type(error).__name__}") from error
        finally:
            if answer is None and response is not None:
                response.close()
        return answer

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS, ttl_dns_cache=10),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(
                    total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=self._silent_seconds
                ),
            )
        return self._session


def _content_type(response: aiohttp.ClientResponse) -> bytes:
    """Never one that a browser would run."""
    given = response.headers.get("content-type", "")
    harmless = response.content_type in {"application/json", "text/event-stream"}
    return given.encode("latin-1", "replace") if harmless else b"text/plain; charset=utf-8"


def _text(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace").strip() or "503"
