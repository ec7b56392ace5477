"""What one account, or one node, keeps writing: answers kept for fresh keys, frames by post, health that changes by
turns.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

from agent.protocol import Frame, Health, Inventory, Sample, encode
from tests.attacks.registry import attack
from tests.attacks.target import Target
from tests.attacks.wire import GONE, connected

PAUSE_SECONDS = 0.2
AT_ONCE = 8
GPUS = 64
KEYED_NODE, POSTING_NODE, FLAPPING_NODE = "attack-keys", "attack-posts", "attack-flaps"


@attack("idempotency-keys", window="quotas")
async def idempotency_keys(target: Target) -> None:
    """Fresh keys for writes whose answers are long: each of 60 kB was kept for a day, as many as came."""
    numbers, body = itertools.count(), json.dumps(_node(KEYED_NODE)).encode()
    headers = _headers(target, "application/json")

    def keyed() -> tuple[bytes, dict[str, str]]:
        return body, {**headers, "Idempotency-Key": f"attack-{time.time_ns()}-{next(numbers)}"}

    await _many(target, "PUT", f"/api/v1/nodes/{KEYED_NODE}/inventory/", keyed)


@attack("agent-posts", window="quotas")
async def agent_posts(target: Target) -> None:
    """Samples by post as fast as they are taken: sockets had a pace, posts had none."""
    order = [f"GPU-{POSTING_NODE}-{minor}" for minor in range(GPUS)]

    def sample(boot: str, seq: int) -> Frame:
        return Sample(boot, seq, time.time(), utilisation_percent=[seq % 100] * GPUS, devices=order)

    await _post(target, POSTING_NODE, sample)


@attack("flapping-health", window="quotas")
async def flapping_health(target: Target) -> None:
    """64 GPUs sick and well by turns, in each frame all of them: 64 events and 64 new revisions each time."""
    uuids = [device["uuid"] for device in _node(FLAPPING_NODE)["devices"]]

    def turn(boot: str, seq: int) -> Frame:
        if seq == 1:
            return Inventory(boot, seq, time.time(), _node(FLAPPING_NODE))
        return Health(boot, seq, time.time(), dict.fromkeys(uuids, "Xid 79" if seq % 2 else ""))

    await _post(target, FLAPPING_NODE, turn)


async def _post(target: Target, node: str, frame: Callable[[str, int], Frame]) -> None:
    boot, numbers = f"attack-{time.time_ns()}", itertools.count(1)
    headers = {"Authorization": f"Bearer {target.tokens[node]}", "Content-Type": "application/msgpack"}

    def next_frame() -> tuple[bytes, dict[str, str]]:
        return encode(frame(boot, next(numbers))), headers

    await _many(target, "POST", f"/api/v1/agents/{node}/samples/", next_frame)


async def _many(target: Target, method: str, path: str, make: Callable[[], tuple[bytes, dict[str, str]]]) -> None:
    """On `AT_ONCE` connections, one request after the other, whatever is answered."""

    async def one() -> None:
        while True:
            try:
                async with connected(target.main, limit=1 << 20) as wire:
                    while True:
                        body, headers = make()
                        await wire.ask(method, path, body=body, headers=headers)
            except GONE:
                await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(one())


def _headers(target: Target, media: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {target.tokens['admin']}", "Content-Type": media}


def _node(name: str) -> dict[str, Any]:
    devices = [
        {"minor": minor, "uuid": f"GPU-{name}-{minor}", "model": "H100", "memory": "80Gi"} for minor in range(GPUS)
    ]
    return {"name": name, "devices": devices}
