"""Answers that are none."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from gpuplane.listeners.gateway.flights import SlotLost
from gpuplane.listeners.gateway.upstream import Upstream
from inference.dispatch.records import Place


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx-long: " + b"a" * 20_000 + b"\r\n\r\n", id="a header that is too long"),
    ],
)
async def test_an_answer_that_is_no_http(answer: bytes) -> None:
    """SLOT-9 another slot is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream(silent_seconds=5)
    place = Place(slot="s", address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}", model_name="m")
    try:
        with pytest.raises(SlotLost):
            await upstream.send(place, "/v1/completions", b"{}", request_id=uuid4())
    finally:
        await upstream.close()
        server.close()
