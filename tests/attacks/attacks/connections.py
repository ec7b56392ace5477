"""Connections that say nothing."""

from __future__ import annotations

import asyncio

from tests.attacks.registry import attack
from tests.attacks.target import CONNECTIONS, HOST, Listener, Target
from tests.attacks.wire import GONE, connected, head

IDLE = 2 * CONNECTIONS
SILENT = 100
PAUSE_SECONDS = 5.0


@attack("idle-connections", window="connections")
async def idle_connections(target: Target) -> None:
    """Twice as many connections as the listener takes, from one address: most say nothing, every fifth asked once and
    is kept alive.
    """
    async with asyncio.TaskGroup() as tasks:
        for number in range(IDLE):
            tasks.create_task(_idle(target.main, asks=number % 5 == 0))
            if number % 10 == 0:
                await asyncio.sleep(0.05)


async def _idle(listener: Listener, *, asks: bool) -> None:
    while True:
        try:
            async with connected(listener) as wire:
                if asks:
                    wire.writer.write(head("GET", "/static/nothing", {}))
                while await wire.reader.read(1 << 16):
                    pass
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


@attack("no-handshake", window="connections")
async def no_handshake(target: Target) -> None:
    """Connections to the TLS listener that never shake hands; half of them begin to."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(SILENT):
            tasks.create_task(_unshaken(target.webhook, said=b"\x16\x03\x01\x02\x00\x01" if number % 2 else b""))


async def _unshaken(listener: Listener, *, said: bytes) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            try:
                writer.write(said)
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.transport.abort()
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


@attack("unread-answers", window="connections")
async def unread_answers(target: Target) -> None:
    """Clients that ask for large files again and again, and read nothing of the answers."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(_unread(target.main))


async def _unread(listener: Listener) -> None:
    while True:
        try:
            async with connected(listener, limit=1024) as wire:
                while not wire.writer.is_closing():
                    wire.writer.write(head("GET", "/static/admin/css/base.css", {}))
                    await wire.writer.drain()
                    await asyncio.sleep(0.1)
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)
