"""Tokens at doors that they are not for: a crowd with revoked ones, and with those of every other scope."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tests.attacks.registry import attack
from tests.attacks.target import HOST, Target
from tests.attacks.wire import GONE, connected

CROWD = 12
PAUSE_SECONDS = 0.02
SCOPES = ("metrics", "service", "webhooks", "inventory", "other-agent", "revoked")
REFUSALS = frozenset({401, 403})


def _doors(target: Target) -> Iterator[tuple[str, str, frozenset[str]]]:
    """(method, path, kinds of tokens for which it is)."""
    node = target.nodes[0]
    nobody: frozenset[str] = frozenset()
    yield "POST", "/extender/filter", frozenset({"service"})
    yield "POST", "/extender/bind", frozenset({"service"})
    yield "POST", "/webhooks/pods/validate", frozenset({"webhooks"})
    yield "POST", "/webhooks/bindings/validate", frozenset({"webhooks"})
    yield "PUT", f"/api/v1/nodes/{node}/inventory/", frozenset({"inventory"})
    yield "DELETE", f"/api/v1/nodes/{node}/", nobody
    yield "POST", f"/api/v1/agents/{target.agent_node}/samples/", nobody
    yield "GET", "/api/v1/fleet/metrics/", frozenset({"metrics"})
    yield "GET", "/api/v1/claims/", nobody
    yield "POST", "/api/v1/tokens/", nobody


@attack("foreign-tokens", window="callers")
async def foreign_tokens(target: Target) -> None:
    """Each token at every door but its own: a scraper's deleted nodes, replaced inventories, spoke as an agent and
    bound pods.
    """
    async with asyncio.TaskGroup() as tasks:
        for number in range(CROWD):
            tasks.create_task(_knock(target, number))


async def _knock(target: Target, number: int) -> None:
    turns = itertools.cycle([(door, kind) for door in _doors(target) for kind in SCOPES if kind not in door[2]])
    for _ in range(7 * number):
        next(turns)
    while True:
        try:
            async with connected(target.main) as wire:
                for (method, path, _), kind in turns:
                    bearer = {"Authorization": f"Bearer {target.tokens[kind]}", "Content-Type": "application/json"}
                    answer = await wire.ask(method, path, body=b"{}", headers=bearer)
                    if answer.status not in REFUSALS:
                        raise RuntimeError(
                            f"{method} {path} with the token {kind}: {answer.status}, {answer.body[:200]!r}"
                        )
                    await asyncio.sleep(PAUSE_SECONDS)
        except GONE:
            await asyncio.sleep(PAUSE_SECONDS)


@attack("guessed-tokens", window="callers")
async def guessed_tokens(target: Target) -> None:
    """Guesses at the scheduler's paths, each of which has to be looked up."""
    while True:
        try:
            async with connected(target.main) as wire:
                while True:
                    bearer = {"Authorization": f"Bearer {secrets.token_hex(32)}"}
                    answer = await wire.ask("POST", "/extender/filter", body=b"{}", headers=bearer)
                    if answer.status not in REFUSALS | {429, 503}:
                        raise RuntimeError(f"a guess was answered {answer.status}")
                    await asyncio.sleep(PAUSE_SECONDS)
        except GONE:
            await asyncio.sleep(PAUSE_SECONDS)


@attack("foreign-agents", window="callers")
async def foreign_agents(target: Target) -> None:
    """Sessions as an agent, by tokens of every other scope and another node's."""
    uri = f"ws://{HOST}:{target.main.port}/ws/agents/{target.agent_node}/"
    for kind in itertools.cycle(SCOPES):
        headers = {"Authorization": f"Bearer {target.tokens[kind]}"}
        try:
            async with connect(uri, additional_headers=headers, compression=None):
                raise RuntimeError(f"a session was opened with the token {kind}")
        except InvalidStatus as refused:
            if refused.response.status_code not in REFUSALS:
                raise
        except (*GONE, WebSocketException):
            pass
        await asyncio.sleep(10 * PAUSE_SECONDS)
