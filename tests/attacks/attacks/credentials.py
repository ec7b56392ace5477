"""Credentials by the thousand that are none."""

from __future__ import annotations

import asyncio
import itertools

from tests.attacks.registry import attack
from tests.attacks.target import Target
from tests.attacks.wire import GONE, agent_like, connected

AT_ONCE = 16
PAUSE_SECONDS = 0.02


@attack("guessed-agents", window="callers")
async def guessed_agents(target: Target) -> None:
    """Tokens at the agents' door, each another: no JWT, a JWT of nobody, and what looks like an agent's.

    Agents had waited 22 s.
    """
    numbers = itertools.count()
    path = f"/api/v1/agents/{target.agent_node}/samples/"

    async def one() -> None:
        while True:
            try:
                async with asyncio.timeout(15), connected(target.main) as wire:
                    for _ in range(50):
                        number = next(numbers)
                        token = (f"{number:064x}", f"a.b.{number}", agent_like(str(number)))[number % 3]
                        await wire.ask("POST", path, headers={"Authorization": f"Bearer {token}"})
                        await asyncio.sleep(PAUSE_SECONDS)
            except (*GONE, TimeoutError):
                pass
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(one())


@attack("guessed-sessions", window="callers")
async def guessed_sessions(target: Target) -> None:
    """Session cookies that were never given, at pages and REST."""
    numbers = itertools.count()
    while True:
        try:
            async with asyncio.timeout(15), connected(target.main, limit=1 << 20) as wire:
                for path in ("/nodes/", "/api/v1/nodes/", "/claims/"):
                    await wire.ask("GET", path, headers={"Cookie": f"sessionid={next(numbers):032x}"})
                    await asyncio.sleep(PAUSE_SECONDS)
        except (*GONE, TimeoutError):
            pass
        await asyncio.sleep(0.1)
