"""A small world of slots without a cluster, on SQLite in memory."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from tests import ledger_truth
from tests.slots import SlotWorld, problems


@pytest.fixture
def world(db: None, redis_url: str, settings: Settings) -> SlotWorld:
    settings.GPUPLANE_REDIS_URL = redis_url
    return SlotWorld()


def all_is_well() -> None:
    """Ledger and slots say the same."""
    assert ledger_truth.problems() == []
    assert problems() == []
