"""Heads of requests that never end."""

from __future__ import annotations

import asyncio
import itertools

from tests.attacks.registry import attack
from tests.attacks.target import Listener, Target
from tests.attacks.wire import GONE, connected

PIECE = b"a" * 65_536
PAUSE_SECONDS = 0.2
SLOW = 60


@attack("endless-header", window="connections")
async def endless_header(target: Target) -> None:
    """A header line without end at every listener: its pieces were joined anew with each read, 13 s for one connection
    of 200 MB.
    """
    async with asyncio.TaskGroup() as tasks:
        for listener in target.listeners:
            tasks.create_task(_endless(listener, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: "))
        tasks.create_task(_endless(target.main, b"GET /"))
        tasks.create_task(_endless(target.main, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-"))


async def _endless(listener: Listener, begin: bytes) -> None:
    while True:
        try:
            async with connected(listener) as wire:
                wire.writer.write(begin)
                for _ in range(4000):
                    wire.writer.write(PIECE)
                    await wire.writer.drain()
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


@attack("many-headers", window="connections")
async def many_headers(target: Target) -> None:
    """Short header lines without end."""
    for number in itertools.count():
        try:
            async with connected(target.listeners[number % 3]) as wire:
                wire.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
                for _ in range(1000):
                    wire.writer.write(b"x: y\r\n" * 1000)
                    await wire.writer.drain()
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


@attack("endless-trailer", window="connections")
async def endless_trailer(target: Target) -> None:
    """A trailer line without end behind a chunked body, and an extension of a chunk without end."""
    begin = b"POST /nodes/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_endless(target.main, begin + b"1\r\nx\r\n0\r\nx-long: "))
        tasks.create_task(_endless(target.main, begin + b"1;x="))


@attack("slow-heads", window="connections")
async def slow_heads(target: Target) -> None:
    """Connections at every listener that send a byte of their head each second (slowloris)."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(SLOW):
            tasks.create_task(_slow(target.listeners[number % 3]))


async def _slow(listener: Listener) -> None:
    while True:
        try:
            async with connected(listener) as wire:
                wire.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
                while not wire.reader.at_eof():
                    wire.writer.write(b"a")
                    await wire.writer.drain()
                    await asyncio.sleep(1)
        except GONE:
            pass
        await asyncio.sleep(PAUSE_SECONDS)
