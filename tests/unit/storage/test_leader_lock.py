from __future__ import annotations

import threading
import time

import pytest
import redis

from storage import leader_lock as module
from storage.leader_lock import LOCK_SECONDS, PREFIX, leader_lock, shut_down, stop_all


def test_one_at_a_time(redis_url: str) -> None:
    with (
        leader_lock(redis_url, "pods") as first,
        leader_lock(redis_url, "pods") as second,
        leader_lock(redis_url, "nodes") as other,
    ):
        assert first is not None
        assert second is None
        assert other is not None
    with leader_lock(redis_url, "pods") as third:
        assert third is not None
        assert third.value != first.value


def test_what_is_carried_over(redis_url: str) -> None:
    with leader_lock(redis_url, "pods") as first:
        assert first is not None
        assert first.carried is None
        assert first.carry("123")
    with leader_lock(redis_url, "pods") as second:
        assert second is not None
        assert second.carried == "123"
        assert second.carry(None)
        assert second.carried is None


def test_a_worker_that_stalled_carries_nothing(redis_url: str) -> None:
    """The lock of a dead or stalled worker expires, and what it still writes counts for nothing."""
    with leader_lock(redis_url, "pods") as stalled:
        assert stalled is not None
        redis.Redis.from_url(redis_url).delete(f"{PREFIX}pods:lock")  # as when its time is over
        with leader_lock(redis_url, "pods") as next_one:
            assert next_one is not None
            assert next_one.carry("200")
            assert not stalled.renew()
            assert not stalled.carry("100")
            assert next_one.carried == "200"
            stalled.end()
            assert next_one.renew()  # the lock is still the next one's


def test_losing_the_lock_stops_the_work(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.leader_lock.RENEW_SECONDS", 0.01)
    with leader_lock(redis_url, "pods") as ours:
        assert ours is not None
        redis.Redis.from_url(redis_url).set(f"{PREFIX}pods:lock", "another")
        assert ours.stop.wait(30)


def test_who_waits_for_ever_loses_the_lock(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is renewed by a thread of its own, but not for longer than any run takes."""
    monkeypatch.setattr("storage.leader_lock.RENEW_SECONDS", 0.01)
    monkeypatch.setattr("storage.leader_lock.HELD_SECONDS", 0.1)
    monkeypatch.setattr("storage.leader_lock.LOCK_SECONDS", 0.2)
    with leader_lock(redis_url, "pods") as ours:
        assert ours is not None
        assert ours.stop.wait(30)
        deadline = time.monotonic() + 30
        while True:
            with leader_lock(redis_url, "pods") as another:
                if another is not None:
                    return
            assert time.monotonic() < deadline, "it was renewed all the same"
            time.sleep(0.02)


def test_a_lock_that_nobody_renews_ends(redis_url: str) -> None:
    with leader_lock(redis_url, "pods") as ours:
        assert ours is not None
        left = redis.Redis.from_url(redis_url).pttl(f"{PREFIX}pods:lock")
        assert 0 < left <= LOCK_SECONDS * 1000


def test_stopping_all(redis_url: str) -> None:
    ended = threading.Event()

    def work() -> None:
        with leader_lock(redis_url, "pods") as ours:
            assert ours is not None
            began.set()
            ours.stop.wait(30)
            ended.set()

    began = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(30)
    stop_all()
    thread.join(30)
    assert ended.is_set()


def test_after_redis_lost_everything_the_first_holder_writes_nothing(redis_url: str) -> None:
    with leader_lock(redis_url, "pods") as first:
        assert first is not None
        redis.Redis.from_url(redis_url).flushall()
        with leader_lock(redis_url, "pods") as second:
            assert second is not None
            assert not first.carry("of the first")
            assert not first.renew()
            first.end()
            assert second.renew()


def test_a_lock_that_is_taken_while_the_worker_shuts_down(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that was already delivered would run its 25 s."""
    monkeypatch.setattr(module, "_shutting_down", threading.Event())
    shut_down()
    with leader_lock(redis_url, "pods") as ours:
        assert ours is not None
        assert ours.stop.is_set()


def test_redis_away(tmp_path: object) -> None:
    with pytest.raises(redis.RedisError), leader_lock(f"unix://{tmp_path}/none.sock", "pods"):
        raise AssertionError("no lock without Redis")
