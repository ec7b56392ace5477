"""What a web process listens to, and that it ends with the process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from access import changes
from gpuplane.start import subscriptions
from storage.redis_client import Purpose, client


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """Accounts of which this process was told."""
    found: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS", (changes.subscription(found.put_nowait),))
    return found


def test_it_listens_to_changes_of_accounts_slots_and_runners() -> None:
    channels = [one.channel for one in subscriptions.SUBSCRIPTIONS]
    assert channels == ["gpuplane:access", "gpuplane:requests", "gpuplane:runners"]


async def test_it_hears_between_start_and_stop(redis_url: str, settings: Any, heard: asyncio.Queue[str]) -> None:
    """VIEW-6 and its connection goes with it."""
    settings.GPUPLANE_REDIS_URL = redis_url
    before = asyncio.all_tasks()
    await subscriptions.start()
    async with asyncio.timeout(30):
        assert await heard.get() == "", "what was said before nobody heard"
        with client(redis_url, Purpose.WORK) as connection:
            assert connection.publish("gpuplane:access", b'{"account": "olga"}') == 1
            assert await heard.get() == "olga"
            await subscriptions.stop()
            assert asyncio.all_tasks() == before
            while connection.publish("gpuplane:access", b'{"account": "olga"}'):  # noqa: ASYNC110 - Redis tells nobody
                await asyncio.sleep(0.01)


async def test_a_redis_that_is_away_delays_neither(settings: Any, tmp_path: Path, heard: asyncio.Queue[str]) -> None:
    settings.GPUPLANE_REDIS_URL = f"unix://{tmp_path}/none.sock"
    async with asyncio.timeout(5):
        await subscriptions.start()
        await asyncio.sleep(0.05)
        await subscriptions.stop()
    assert heard.empty()
