"""What attackers and honest clients share: HTTP/1.1 by hand over asyncio's streams, so that clients cost little and can
be as rude as they like.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.attacks.target import HOST, Listener


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


@dataclass(slots=True)
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """One request and its answer. Raises OSError or EOFError."""
        self.writer.write(head(method, path, {"Content-Length": str(len(body)), **(headers or {})}) + body)
        await self.writer.drain()
        return await self.answer()

    async def answer(self) -> Answer:
        """The next answer. Raises OSError or EOFError."""
        told = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(told.split(" ", 2)[1])
        if "transfer-encoding: chunked" in told:
            body = b""
            while size := int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
            return Answer(status, body)
        length = told.partition("content-length:")[2].partition("\r\n")[0].strip()
        return Answer(status, await self.reader.readexactly(int(length or 0)))


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    """A request up to its body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@contextlib.asynccontextmanager
async def connected(listener: Listener, *, tls: bool = True, limit: int = 1 << 16) -> AsyncIterator[Wire]:
    """A connection; `tls` False leaves the handshake of a TLS listener out. Raises OSError."""
    context = listener.context() if tls else None
    reader, writer = await asyncio.open_connection(
        HOST, listener.port, ssl=context, server_hostname="localhost" if context else None, limit=limit
    )
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


GONE = (OSError, EOFError, asyncio.LimitOverrunError)
"""What a client meets that is refused."""


def agent_like(name: str) -> str:
    """A token that says of itself what an agent's does; who has not got it from the API server can only guess its
    signature.
    """
    claims = {
        "iss": "https://kubernetes.default.svc",
        "sub": "system:serviceaccount:gpuplane-system:gpuplane-agent",
        "aud": ["gpuplane"],
        "exp": 4_102_444_800,
        "jti": name,
    }
    parts = ({"alg": "RS256", "kid": "one"}, claims, name)
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts)
