"""The gate before the sign-in page: few attempts at once, slow senders hold nobody up, refusals take their time."""

import asyncio

import pytest

from gpuplane.listeners import sign_ins
from gpuplane.listeners.sign_ins import SignInGate


class Attempt:
    """One request; `messages` is what came back."""

    def __init__(self, gate, *parts, finished=True):
        self.parts, self.finished, self.messages = list(parts), finished, []
        self.task = asyncio.create_task(gate({"type": "http", "headers": []}, self.receive, self.send))

    async def receive(self):
        if not self.parts:
            await asyncio.Event().wait()
        part = self.parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self.parts) or not self.finished}

    async def send(self, message):
        self.messages.append(message)

    async def status(self):
        await self.task
        return self.messages[0]["status"]


class Page:
    """Answers `status` once `open` is set; knows how many were inside."""

    def __init__(self, status=401):
        self.status, self.open, self.inside, self.most, self.bodies = status, asyncio.Event(), 0, 0, []
        self.third = asyncio.Event()

    async def __call__(self, _scope, receive, send):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.bodies.append((await receive())["body"])
        if len(self.bodies) > sign_ins.AT_ONCE:
            self.third.set()
        await self.open.wait()
        self.inside -= 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"said"})


async def test_few_at_once_and_a_bounded_line():
    page = Page()
    gate = SignInGate(page)
    room = sign_ins.AT_ONCE + sign_ins.WAITING_MOST
    attempts = [Attempt(gate, b"name=", b"ann") for _ in range(room)]
    await asyncio.sleep(0)
    late = Attempt(gate, b"name=ann")
    assert await late.status() == 503

    page.open.set()

    assert [await one.status() for one in attempts] == [401] * room
    assert page.most == sign_ins.AT_ONCE
    assert set(page.bodies) == {b"name=ann"}


async def test_a_slow_sender_holds_nobody_up():
    page = Page()
    page.open.set()
    gate = SignInGate(page)
    slow = [Attempt(gate, b"name=", finished=False) for _ in range(100)]
    assert await Attempt(gate, b"name=ann").status() == 401
    for one in slow:
        one.task.cancel()


async def test_who_waits_too_long_is_asked_to_come_back(monkeypatch):
    monkeypatch.setattr(sign_ins, "WAIT_SECONDS", 0.01)
    page = Page()
    gate = SignInGate(page)
    first = [Attempt(gate, b"x") for _ in range(sign_ins.AT_ONCE)]
    late = Attempt(gate, b"x")
    assert await late.status() == 503
    page.open.set()
    assert [await one.status() for one in first] == [401] * sign_ins.AT_ONCE


async def test_a_refusal_holds_no_turn(monkeypatch):
    monkeypatch.setattr(sign_ins, "REFUSAL_SECONDS", 3600)
    page = Page(status=429)
    page.open.set()
    gate = SignInGate(page)
    refused = [Attempt(gate, b"x") for _ in range(sign_ins.AT_ONCE + 1)]
    await page.third.wait()
    page.status = 302
    assert await Attempt(gate, b"x").status() == 302
    assert not any(one.messages for one in refused)
    for one in refused:
        one.task.cancel()


@pytest.mark.parametrize("parts", [[b"x" * 20_000], [b"x" * 9_000, b"x" * 9_000]], ids=["one part", "two parts"])
async def test_long_bodies_are_refused(parts):
    page = Page()
    assert await Attempt(SignInGate(page), *parts).status() == 413
    assert page.bodies == []
