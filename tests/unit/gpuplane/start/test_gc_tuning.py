"""The collector of garbage sees young objects often, and all of them seldom, but it does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest

from gpuplane.start import gc_tuning


class Ring:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _none_set_aside() -> Iterator[None]:
    """What tests/conftest.py has set aside is looked through meanwhile."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
async def started() -> AsyncIterator[None]:
    await gc_tuning.start()
    yield
    await gc_tuning.stop()


async def test_everything_is_as_before_once_the_process_stops() -> None:
    before = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    await gc_tuning.start()
    assert gc.get_threshold() == gc_tuning.THRESHOLDS
    gc.collect(1)
    assert gc.get_freeze_count()
    await gc_tuning.stop()
    assert (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()) == before


@pytest.mark.usefixtures("started")
async def test_young_garbage_is_freed_before_the_rest_is_set_aside() -> None:
    gone = weakref.ref(Ring())
    gc.collect(1)
    assert gone() is None


@pytest.mark.parametrize("generation", [pytest.param(0, id="young"), pytest.param(1, id="middle")])
async def test_garbage_is_freed_by_time(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few objects are made; of the middle generation, too."""
    monkeypatch.setattr(gc_tuning, "YOUNG_SECONDS", 0.01)
    monkeypatch.setattr(gc_tuning, "MIDDLE_AFTER", 2)
    freed = asyncio.Event()
    ring = Ring()
    weakref.finalize(ring, freed.set)
    if generation:
        gc.collect(0)
    del ring
    await gc_tuning.start()
    try:
        await asyncio.wait_for(freed.wait(), 10)
    finally:
        await gc_tuning.stop()


@pytest.mark.usefixtures("started")
async def test_what_becomes_garbage_after_it_was_set_aside_is_freed_in_the_end() -> None:
    ring = Ring()
    gone = weakref.ref(ring)
    gc.collect(1)
    del ring
    gc.collect(1)
    assert gone() is not None
    gc_tuning.collect_all()
    assert gone() is None
