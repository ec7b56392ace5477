"""Scenarios that take long, and wirings that no search gets through."""

from __future__ import annotations

import asyncio
import json
import random
from functools import cache
from typing import Any

from tests.attacks.registry import attack
from tests.attacks.target import Target
from tests.attacks.wire import GONE, connected, head

CLIENTS = 6
"""Of each user."""
PATIENCE_SECONDS = 3.0
PODS, NODES = 6_000, 2_500
GPUS = 256
LARGE_NODES = 4
JSON = {"Content-Type": "application/json"}


@attack("what-if-and-leave", window="what-if")
async def what_if_and_leave(target: Target) -> None:
    """Heavy scenarios by every user at once, whose clients leave after a while or at once: each went on to its end, and
    kept 790 MB.
    """
    users = [{"Authorization": f"Bearer {target.tokens[kind]}"} for kind in ("admin", "viewer", "service")]
    bodies = [many_pods(), large_scenario(), b"pods:\n" + b"- {metadata: {name: p}}\n" * 150_000]
    async with asyncio.TaskGroup() as tasks:
        for headers in users:
            for number in range(CLIENTS):
                tasks.create_task(_runs(target, headers, bodies[number % 3], waits=number % 2 == 0))


async def _runs(target: Target, headers: dict[str, str], body: bytes, *, waits: bool) -> None:
    kind = {"Content-Type": "application/yaml"} if body.startswith(b"pods:") else JSON
    request = head("POST", "/api/v1/simulations/", {"Content-Length": str(len(body)), **headers, **kind}) + body
    while True:
        try:
            async with connected(target.main) as wire:
                wire.writer.write(request)
                await wire.writer.drain()
                if waits:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await wire.reader.read(1)
        except (*GONE, TimeoutError):
            pass
        await asyncio.sleep(0.2)


@attack("large-inventories", window="what-if")
async def large_inventories(target: Target) -> None:
    """Nodes of 256 GPUs, no two wired alike, put again and again, their pages looked at, and pods that want sets of
    their GPUs.
    """
    names = [f"attacked-large-{number}" for number in range(LARGE_NODES)]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_inventories(target, names))
        tasks.create_task(_pages(target, names))
        tasks.create_task(_filters(target, names))


async def _inventories(target: Target, names: list[str]) -> None:
    headers = {"Authorization": f"Bearer {target.tokens['admin']}", **JSON}
    number = 0
    while True:
        name = names[number % len(names)]
        number += 1
        body = json.dumps(large_node(name, seed=number % (2 * len(names)))).encode()
        await _asked(target, "PUT", f"/api/v1/nodes/{name}/inventory/", body, headers)
        await asyncio.sleep(1)


async def _pages(target: Target, names: list[str]) -> None:
    number = 0
    while True:
        number += 1
        await _asked(target, "GET", f"/nodes/{names[number % len(names)]}/", b"", {"Cookie": target.session})
        await asyncio.sleep(0.5)


async def _filters(target: Target, names: list[str]) -> None:
    number = 0
    while True:
        number += 1
        pod = _pod(f"large-{number % 3}", gpus=(2, 8, 100)[number % 3])
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        try:
            async with connected(target.extender) as wire:
                await wire.ask("POST", "/extender/filter", body=body, headers=JSON)
        except GONE:
            pass
        await asyncio.sleep(0.3)


async def _asked(target: Target, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    try:
        async with connected(target.main, limit=1 << 22) as wire:
            await wire.ask(method, path, body=body, headers=headers)
    except GONE:
        pass


def _pod(name: str, *, gpus: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    metadata = {"name": name, "namespace": "attack", "uid": f"attack-{name}"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": resources}]}}


@cache
def many_pods() -> bytes:
    """Many pods that many nodes refuse."""
    pods = [_pod(f"p{number}", gpus=1) for number in range(PODS)]
    return json.dumps({"nodes": [{"name": f"n{number}"} for number in range(NODES)], "pods": pods}).encode()


@cache
def large_scenario() -> bytes:
    """Sets of eight out of 256 GPUs, node after node."""
    nodes = [large_node(f"n{number}", seed=number) for number in range(6)]
    return json.dumps({"nodes": nodes, "pods": [_pod(f"p{number}", gpus=8) for number in range(150)]}).encode()


def large_node(name: str, *, seed: int) -> dict[str, Any]:
    """256 GPUs, each linked to some others by another number of links."""
    chance = random.Random(seed)
    devices = [
        {"minor": minor, "type": "gpu", "uuid": f"GPU-{name}-{minor}", "model": "H100", "memory": "80Gi"}
        for minor in range(GPUS)
    ]
    links = [[a, b, chance.randrange(1, 1000)] for a in range(GPUS) for b in range(a) if chance.random() < 0.5]
    return {"name": name, "devices": devices, "links": links}
