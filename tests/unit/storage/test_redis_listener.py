"""One connection for all channels: who is told what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storage.redis_client import Purpose, client
from storage.redis_listener import Listener, Subscription
from tests.servers.redis import Mortal

LOST = "lost"
SUBSCRIBED = "subscribed"


class Subscriber:
    """Notes what it is told."""

    def __init__(self, channel: str, *, fails: bool = False) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self._fails = fails
        self.subscription = Subscription(
            channel=channel,
            on_message=lambda data: self._note(data.decode()),
            on_subscribed=lambda: self._note(SUBSCRIBED),
            on_lost=lambda _: self._note(LOST),
        )

    def _note(self, what: str) -> None:
        self.told.put_nowait(what)
        if self._fails:
            raise ValueError(what)


@contextmanager
def listening(url: str, *subscribers: Subscriber) -> Iterator[Listener]:
    listener = Listener(url, [one.subscription for one in subscribers])
    task = asyncio.create_task(listener.run())
    try:
        yield listener
    finally:
        task.cancel()


def publish(url: str, *messages: tuple[str, str]) -> None:
    with client(url, Purpose.WORK) as connection:
        for channel, text in messages:
            connection.publish(channel, text)


def connections(url: str) -> int:
    """Those that listen."""
    with client(url, Purpose.WORK, decode=True) as connection:
        return len([one for one in connection.client_list() if int(one["sub"])])


@pytest.mark.parametrize("fails", [False, True], ids=["both well", "one with a defect"])
async def test_each_channel_is_handed_to_its_own(redis_url: str, fails: bool) -> None:
    """VIEW-6 over one connection, in order; a subscriber that fails takes nothing from the other."""
    one, other = Subscriber("one", fails=fails), Subscriber("other")
    with listening(redis_url, one, other) as listener:
        async with asyncio.timeout(30):
            await listener.listening.wait()
            assert await asyncio.to_thread(connections, redis_url) == 1
            await asyncio.to_thread(publish, redis_url, ("one", "a"), ("other", "b"), ("one", "c"), ("stranger", "d"))
            assert [await one.told.get() for _ in range(3)] == [SUBSCRIBED, "a", "c"]
            assert [await other.told.get() for _ in range(2)] == [SUBSCRIBED, "b"]


async def test_an_outage_is_reported_to_all_once(mortal_redis: Mortal, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 each knows that it may have missed something before it hears anything else."""
    monkeypatch.setattr("storage.redis_listener.AGAIN_SECONDS", 0.05)
    subscribers = [Subscriber("one"), Subscriber("other")]
    with listening(mortal_redis.url, *subscribers) as listener:
        async with asyncio.timeout(60):
            for one in subscribers:
                assert await one.told.get() == SUBSCRIBED
            await asyncio.to_thread(mortal_redis.stop)
            for one in subscribers:
                assert await one.told.get() == LOST
            assert not listener.listening.is_set()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(mortal_redis.start)
            await listener.listening.wait()
            await asyncio.to_thread(publish, mortal_redis.url, ("one", "a"), ("other", "a"))
            for one in subscribers:
                assert [await one.told.get() for _ in range(2)] == [SUBSCRIBED, "a"]


async def test_a_redis_that_falls_silent(mortal_redis: Mortal, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 as when its machine is gone: the connection breaks by itself only after a quarter of an hour."""
    monkeypatch.setattr("storage.redis_listener.QUIET_SECONDS", 0.05)
    monkeypatch.setattr("storage.redis_listener.ANSWER_SECONDS", 3.0)
    one = Subscriber("one")
    with listening(mortal_redis.url, one) as listener:
        async with asyncio.timeout(60):
            assert await one.told.get() == SUBSCRIBED
            await asyncio.sleep(1.0)  # it answers each ping
            await asyncio.to_thread(publish, mortal_redis.url, ("one", "a"))
            assert await one.told.get() == "a"
            with mortal_redis.silent():
                assert await one.told.get() == LOST
                assert not listener.listening.is_set()
            assert await one.told.get() == SUBSCRIBED


async def test_a_redis_that_is_away_from_the_start(mortal_redis: Mortal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.redis_listener.AGAIN_SECONDS", 0.05)
    await asyncio.to_thread(mortal_redis.stop)
    one = Subscriber("one")
    with listening(mortal_redis.url, one):
        async with asyncio.timeout(60):
            assert await one.told.get() == LOST
            await asyncio.to_thread(mortal_redis.start)
            assert await one.told.get() == SUBSCRIBED
