"""Bodies that are small to send and large to read, and large ones that never end."""

from __future__ import annotations

import asyncio
import itertools

from tests import bombs
from tests.attacks.registry import attack
from tests.attacks.target import Listener, Target
from tests.attacks.wire import GONE, connected, head

PAUSE_SECONDS = 0.3
MIB = bombs.MIB


async def _posted(listener: Listener, path: str, body: bytes, headers: dict[str, str]) -> None:
    """One request, whose answer is read as far as there is one."""
    try:
        async with asyncio.timeout(10), connected(listener) as wire:
            wire.writer.write(head("POST", path, {"Content-Length": str(len(body)), **headers}))
            for start in range(0, len(body), 65_536):
                wire.writer.write(body[start : start + 65_536])
                await wire.writer.drain()
            await wire.answer()
    except (*GONE, TimeoutError):
        pass


@attack("json-bombs", window="bodies")
async def json_bombs(target: Target) -> None:
    """Empty lists, objects and numbers by the million at every door: 9 MB had cost 2.4 GB."""
    rest = {"Authorization": f"Bearer {target.tokens['viewer']}", "Content-Type": "application/json"}
    agent = {"Authorization": f"Bearer {target.tokens['agent']}", "Content-Type": "application/msgpack"}
    shots: list[tuple[Listener, str, bytes, dict[str, str]]] = [
        (target.main, "/api/v1/simulations/", bombs.lists(9 * MIB), rest),
        (target.main, "/api/v1/simulations/", bombs.lists(4 * MIB - 64), rest),
        (target.main, "/api/v1/simulations/", bombs.lists(MIB), rest),
        (target.main, "/api/v1/claims/", bombs.numbers(MIB - 64), rest),
        (target.main, "/api/v1/claims/", b"[" * 500_000, rest),
        (target.webhook, "/webhooks/pods/mutate", bombs.review(bombs.many(b"{}", 2 * MIB)), {}),
        (target.webhook, "/webhooks/pods/validate", bombs.review(bombs.many(b"[]", 2 * MIB)), {}),
        (
            target.extender,
            "/extender/preempt",
            b'{"NodeNameToMetaVictims":{"a":{"Pods":' + bombs.many(b"{}", 4 * MIB) + b"}}}",
            {},
        ),
        (target.extender, "/extender/filter", b'{"Nodes":{"items":' + bombs.many(b"{}", 8 * MIB) + b"}}", {}),
        (target.main, f"/api/v1/agents/{target.agent_node}/samples/", b"\x93" + b"\x91" * 200_000, agent),
    ]
    for listener, path, body, headers in itertools.cycle(shots):
        await _posted(listener, path, body, headers)
        await asyncio.sleep(PAUSE_SECONDS)


@attack("yaml-bombs", window="bodies")
async def yaml_bombs(target: Target) -> None:
    """YAML that doubles, nests, counts by sixty, or holds a million values."""
    rest = {"Authorization": f"Bearer {target.tokens['viewer']}", "Content-Type": "application/yaml"}
    for body in itertools.cycle(bombs.YAML_BOMBS.values()):
        await _posted(target.main, "/api/v1/simulations/", body, rest)
        await asyncio.sleep(1.0)


@attack("large-reviews", window="bodies")
async def large_reviews(target: Target) -> None:
    """AdmissionReviews of 30 MiB, and of the 3 MiB that are taken: one had kept the event loop for 5 s."""
    large = bombs.review(b'[{"name":"' + b"x" * 30 * MIB + b'"}]')
    taken = bombs.review(b'[{"name":"c","env":' + bombs.many(b'{"name":"a"}', 2 * MIB) + b"}]")
    for body in itertools.cycle((large, taken)):
        for path in ("/webhooks/pods/mutate", "/webhooks/pods/validate"):
            await _posted(target.webhook, path, body, {})
            await asyncio.sleep(PAUSE_SECONDS)
