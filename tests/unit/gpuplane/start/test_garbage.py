"""The collector of garbage sees young objects often, and all of them seldom, but it does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpuplane.start import garbage


class Ring:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


async def test_everything_is_as_before_once_the_process_stops() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    await garbage.start()
    assert gc.get_threshold() == garbage.THRESHOLDS
    garbage.set_aside()
    await garbage.stop()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)


def test_young_garbage_is_freed_before_the_rest_is_set_aside() -> None:
    gone = weakref.ref(Ring())
    kept = Ring()
    garbage.set_aside()
    assert gone() is None
    assert gc.get_freeze_count()
    assert kept.itself is kept


def test_what_becomes_garbage_after_it_was_set_aside_is_freed_in_the_end() -> None:
    ring = Ring()
    gone = weakref.ref(ring)
    garbage.set_aside()
    del ring
    garbage.set_aside()
    assert gone() is not None
    garbage.look_through()
    assert gone() is None
