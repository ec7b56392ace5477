"""Samples read by requests, whose threads are not the event loop's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pytest_django import Settings

from access.errors import Unavailable
from agent.protocol import Sample
from nodes.live import agent_liveness, flush, reads
from nodes.live.reads import latest_samples
from nodes.live.samples import TABLE, DetailsView, SampleView


@pytest.fixture
async def serving(redis_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The flusher of a web process, in this event loop; presence is not written."""
    settings.GPUPLANE_REDIS_URL = redis_url
    monkeypatch.setattr(agent_liveness.Writer, "write", lambda *_, **__: None)
    await flush.start()
    yield
    await flush.stop()


def _flushers() -> int:
    return sum(task.get_name() == "samples-flush" for task in asyncio.all_tasks())


@pytest.mark.usefixtures("serving")
async def test_reads_by_threads_start_no_further_flusher() -> None:
    """NODE-2 each read by a request left a flusher behind, which wrote presence and asked Redis for ever."""
    for _ in range(3):
        await asyncio.to_thread(latest_samples)
        flush.ensure_running()  # as with the next frame of an agent
    assert _flushers() == 1


@pytest.mark.usefixtures("serving")
async def test_another_event_loop_of_the_process_starts_no_flusher() -> None:
    """NODE-2 a process has one: the one of the loop that serves."""

    async def elsewhere() -> int:
        flush.ensure_running()
        return _flushers()

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 0
    flush.ensure_running()
    assert _flushers() == 1


@pytest.mark.usefixtures("serving")
async def test_a_loop_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 the request gets a 503 with a reason, and leaves nothing running."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow() -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        raise AssertionError

    monkeypatch.setattr(reads, "_read", slow)
    monkeypatch.setattr(reads, "LOOP_SECONDS", 0.05)
    with pytest.raises(Unavailable, match="cannot be read at the moment"):
        await asyncio.to_thread(latest_samples)
    assert begun.is_set()
    await asyncio.wait_for(over.wait(), 5)


@pytest.mark.usefixtures("serving")
async def test_threads_read_in_the_loop_that_owns_the_samples() -> None:
    """NODE-2 a request sees what an agent just sent, and other processes' samples are fetched for it."""
    frame = Sample("b", 1, 1.0, [11], devices=["GPU-0"])
    TABLE.put("read-by-threads", frame, now=time.monotonic(), received_at=time.time())
    before = time.monotonic()
    samples = await asyncio.to_thread(latest_samples)
    assert samples["read-by-threads"].utilisation_percent == (11,)
    running = flush._Running.flusher
    assert running is not None
    assert running.read_until >= before + flush.READERS_SECONDS


async def test_a_cancellation_that_is_lost_stops_the_flusher_nevertheless(
    redis_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Redis client loses a cancellation that comes while it connects: the web process waited for it at its end."""
    settings.GPUPLANE_REDIS_URL = redis_url
    lost = asyncio.Event()

    async def losing(*_: object, **__: object) -> None:
        if lost.is_set():
            return
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await asyncio.Event().wait()
            finally:
                lost.set()

    monkeypatch.setattr(flush.Flusher, "round", losing)
    await flush.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await flush.stop()
    assert lost.is_set()
    assert _flushers() == 0


async def test_nothing_is_left_where_it_stopped(redis_url: str, settings: Settings) -> None:
    """Another loop of the process would ask Redis by a client of the loop that has ended."""
    settings.GPUPLANE_REDIS_URL = redis_url
    await flush.start()
    await flush.stop()
    assert flush.running_loop() is None
    assert flush._Running.flusher is None


@pytest.mark.usefixtures("serving")
async def test_another_loop_reads_what_this_process_received() -> None:
    """The client of the flusher belongs to the loop that serves."""
    frame = Sample("b", 1, 1.0, [11], devices=["GPU-0"])
    old = time.time() - flush.OWN_SECONDS - 1
    TABLE.put("read-elsewhere", frame, now=time.monotonic(), received_at=old)

    async def elsewhere() -> tuple[SampleView | None, DetailsView | None]:
        return await flush.read_node("read-elsewhere", epoch=time.time())

    sample, details = await asyncio.to_thread(asyncio.run, elsewhere())
    assert sample is not None
    assert (sample.received_at, details) == (old, None)


def test_without_a_serving_loop_the_own_table_is_read() -> None:
    """A command has no event loop, and asks Redis for nothing."""
    frame = Sample("b", 1, 1.0, [12], devices=["GPU-0"])
    TABLE.put("read-by-a-command", frame, now=time.monotonic(), received_at=time.time())
    assert flush.running_loop() is None
    assert latest_samples()["read-by-a-command"].utilisation_percent == (12,)
