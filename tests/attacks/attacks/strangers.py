"""Those who show no credential: pods that ask webhooks what others run, pages in a browser beside the extender."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid

from tests.attacks.registry import attack
from tests.attacks.target import Target
from tests.attacks.wire import GONE, connected

ASKING = 8
"""Connections at once."""
PAUSE_SECONDS = 0.05
BIND = json.dumps({"PodName": "victim", "PodNamespace": "default", "PodUID": "uid-victim", "Node": "n"}).encode()
PAGES = (
    {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    {"Origin": "null", "Content-Type": "application/x-www-form-urlencoded"},
    {"Origin": "http://localhost:3000", "Content-Type": "application/json"},
    {"Content-Type": "multipart/form-data; boundary=x"},
)
"""What a page's POST carries: `no-cors`, a form in a sandbox, a page of this machine, an old browser's form."""


@attack("bindings-of-unknown-pods", window="callers")
async def bindings_of_unknown_pods(target: Target) -> None:
    """Bindings of guessed pods, with and without a UID: each was a read at the API server, and told of the pod."""
    numbers = itertools.count()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(ASKING):
            tasks.create_task(_guess(target, numbers))


async def _guess(target: Target, numbers: itertools.count[int]) -> None:
    while True:
        try:
            async with connected(target.webhook) as wire:
                for number in numbers:
                    answer = await wire.ask(
                        "POST",
                        "/webhooks/bindings/validate",
                        body=_review(f"pod-{number}", uid=str(uuid.uuid4()) if number % 2 else ""),
                        headers={"Content-Type": "application/json"},
                    )
                    if answer.status not in (200, 429):
                        raise AssertionError(f"{answer.status}: {answer.body[:200]!r}")
        except GONE:
            await asyncio.sleep(PAUSE_SECONDS)


def _review(pod: str, *, uid: str) -> bytes:
    metadata = {"name": pod, **({"uid": uid} if uid else {})}
    request = {
        "uid": "one",
        "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "subResource": "binding",
        "operation": "CREATE",
        "namespace": "default",
        "name": pod,
        "userInfo": {"username": "mallory"},
        "object": {"metadata": metadata, "target": {"kind": "Node", "name": "n"}},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


@attack("pages-that-bind", window="callers")
async def pages_that_bind(target: Target) -> None:
    """A page in a browser of the extender's machine posts binds: each was carried out. None may be understood."""
    async with asyncio.TaskGroup() as tasks:
        for page in PAGES:
            tasks.create_task(_post(target, page))


async def _post(target: Target, headers: dict[str, str]) -> None:
    while True:
        try:
            async with connected(target.extender) as wire:
                while True:
                    answer = await wire.ask("POST", "/extender/bind", body=BIND, headers=headers)
                    if answer.status not in (403, 415):
                        raise AssertionError(f"a page was answered {answer.status}: {answer.body[:200]!r}")
                    await asyncio.sleep(PAUSE_SECONDS)
        except GONE:
            await asyncio.sleep(PAUSE_SECONDS)
