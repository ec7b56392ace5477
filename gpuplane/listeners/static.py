"""Serves /static/ from whitenoise's table, without Django's request cycle.

Used by `gpuplane.application`. whitenoise scans the folders once, at start, and knows headers, validators, ranges and
precompressed variants; this module adapts it to ASGI.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from whitenoise.middleware import WhiteNoiseMiddleware

from gpuplane.listeners import Receive, Scope, Send
from gpuplane.listeners.answers import send_problem

CHUNK_BYTES = 256 * 1024
READERS = 4
"""Threads that read files: the loop's own also open connections to the API server, which may take seconds."""


class StaticFiles:
    """An ASGI application for HTTP scopes under STATIC_URL."""

    def __init__(self) -> None:
        self._table = WhiteNoiseMiddleware(None)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="static")

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        found = self._table.find_file(path) if self._table.autorefresh else self._table.files.get(path)
        if found is None:
            await send_problem(send, 404, "there is no such file")
            return
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, found.get_response, scope["method"], _environ(scope))
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
        if answer.file is not None:
            await self._send_file(answer.file, send)
        await send({"type": "http.response.body", "body": b""})

    async def _send_file(self, file: BinaryIO, send: Send) -> None:
        loop = asyncio.get_running_loop()
        try:
            while chunk := await loop.run_in_executor(self._threads, file.read, CHUNK_BYTES):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            file.close()


def _environ(scope: Scope) -> dict[str, str]:
    """Headers in the WSGI spelling that whitenoise reads."""
    return {
        f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}": value.decode("latin-1")
        for name, value in scope["headers"]
    }
