"""Answers of the plain ASGI doors: JSON bodies, and RFC 9457 problem documents for refusals.

Used wherever a request is answered without Django. The shape of a problem is that of
`gpuplane.problems`, which answers for the REST API.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import orjson

from gpuplane.doors import Scope, Send

Headers = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", b"application/problem+json")


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Answer with a body that is JSON already."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [_JSON, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


def problem_body(status: int, detail: str) -> bytes:
    """A problem document: `detail` is a sentence for a person."""
    return orjson.dumps({"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail})


async def send_problem(send: Send, status: int, detail: str, headers: Headers = ()) -> None:
    """Refuse a request."""
    body = problem_body(status, detail)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [_PROBLEM, (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def refuse_socket(scope: Scope, send: Send, status: int, detail: str, headers: Headers = ()) -> None:
    """Refuse a WebSocket before it is accepted; with a status where the server can say one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": detail[:120]})
        return
    body = problem_body(status, detail)
    await send(
        {
            "type": "websocket.http.response.start",
            "status": status,
            "headers": [_PROBLEM, (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "websocket.http.response.body", "body": body})
