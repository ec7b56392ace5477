"""Reads request bodies up to the limit `GPUPLANE_BODY_LIMIT`, for the plain doors and in front of Django.

Kept true: no request makes the process keep more than the limit, whatever its Content-Length says.
"""

from __future__ import annotations

from gpuplane.doors import App, Message, Receive, Scope, Send
from gpuplane.doors.answers import send_problem


class BodyTooLarge(Exception):
    """More bytes than the limit."""


class ClientGone(Exception):
    """The client hung up before the body was complete; nobody waits for an answer."""


def declared_length(scope: Scope) -> int:
    """Content-Length in bytes, 0 when absent or not a number (the bytes are counted anyway)."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def read_body(scope: Scope, receive: Receive, *, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge, ClientGone."""
    if declared_length(scope) > limit:
        raise BodyTooLarge
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit:
            raise BodyTooLarge
        return body
    chunks, size = [body], len(body)
    while message.get("more_body", False):
        if size > limit:
            raise BodyTooLarge
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
    if size > limit:
        raise BodyTooLarge
    return b"".join(chunks)


def too_large(limit: int) -> str:
    """The sentence of a 413."""
    return f"the body is larger than {limit} bytes (GPUPLANE_BODY_LIMIT)"


def limited(app: App, *, limit: int) -> App:
    """The application behind a guard that answers 413 for it."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if declared_length(scope) > limit:
            await send_problem(send, 413, too_large(limit), [(b"connection", b"close")])
            return
        size = 0
        started = False

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise BodyTooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await app(scope, counted, noted)
        except BodyTooLarge:
            if started:
                raise
            await send_problem(send, 413, too_large(limit), [(b"connection", b"close")])

    return guarded
