"""Responses of the plain ASGI applications: JSON, and RFC 9457 problem documents for refusals.

Used wherever a request is answered without Django. `gpuplane.problems` writes the same documents for Django.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import orjson

from gpuplane.listeners import Scope, Send

Header = tuple[bytes, bytes]

CLOSE: Header = (b"connection", b"close")
RETRY_SOON: Header = (b"retry-after", b"1")

_JSON = b"application/json"
_PROBLEM = b"application/problem+json"


class Refused(Exception):
    """A request that is answered by a problem document. `detail` is a sentence for a person."""

    def __init__(self, status: int, detail: str, *headers: Header) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


async def send_response(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes,
    headers: Iterable[Header] = (),
    kind: str = "http.response",
) -> None:
    """Send a whole response."""
    fields = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": f"{kind}.start", "status": status, "headers": fields})
    await send({"type": f"{kind}.body", "body": body})


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Send a body that is JSON already."""
    await send_response(send, status, body, content_type=_JSON)


def problem_body(status: int, detail: str) -> bytes:
    """A problem document."""
    return orjson.dumps({"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail})


async def send_problem(send: Send, status: int, detail: str, headers: Iterable[Header] = ()) -> None:
    """Refuse a request."""
    await send_response(send, status, problem_body(status, detail), content_type=_PROBLEM, headers=headers)


async def refuse_socket(scope: Scope, send: Send, status: int, detail: str, headers: Iterable[Header] = ()) -> None:
    """Refuse a WebSocket before it is accepted; with a status where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": detail[:120]})
        return
    body = problem_body(status, detail)
    await send_response(send, status, body, content_type=_PROBLEM, headers=headers, kind="websocket.http.response")
