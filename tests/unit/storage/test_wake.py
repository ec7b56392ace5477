"""Channels by which processes wake each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from storage.redis_client import Purpose, client
from storage.wake import Channel


def no_room(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_did_not_start_or_ended(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next message starts one, and takes along what was not sent."""
    settings.GPUPLANE_REDIS_URL = redis_url
    channel = Channel("gpuplane:tests-of-wakes")
    with client(redis_url, Purpose.WORK, decode=True) as connection, connection.pubsub() as subscription:
        subscription.subscribe(channel.name)

        def heard() -> str:
            while (message := subscription.get_message(timeout=30)) is None or message["type"] != "message":
                assert message is not None, "nothing was sent"
            return str(message["data"])

        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", no_room)
            channel._ask("a")
        channel._ask("b")
        assert [heard(), heard()] == ["a", "b"]
        thread = channel._thread
        assert thread is not None
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        with monkeypatch.context() as broken:
            broken.setattr("storage.wake.shared_client", lambda *_: 1 / 0)
            channel._ask("lost")
            thread.join(30)
        channel._ask("c")
        assert heard() == "c"
