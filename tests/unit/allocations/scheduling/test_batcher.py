"""Work of many coroutines in one call: everybody gets the outcome of their own, nobody is forgotten, a failure reaches
its batch alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from allocations.scheduling.batcher import Batcher


class Hands:
    """A thread that begins when the test lets it, and what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def in_thread(self, function: Callable[..., Any], /, *args: Any) -> Any:
        self.begun.set()
        await self.may_end.wait()
        return function(*args)

    def double(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        if 13 in items:
            raise ValueError("unlucky")
        return [item * 2 for item in items]


def test_who_comes_while_a_call_is_under_way_goes_with_the_next() -> None:
    async def story() -> None:
        hands = Hands()
        batcher = Batcher(partial(hands.in_thread, hands.double))
        first = asyncio.create_task(batcher.do(1))
        await hands.begun.wait()
        others = [asyncio.create_task(batcher.do(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        hands.may_end.set()
        assert await asyncio.gather(first, *others) == [2, 4, 6, 8]
        assert hands.batches == [[1], [2, 3, 4]]
        assert await batcher.do(5) == 10

    asyncio.run(story())


def test_a_batch_has_its_size() -> None:
    async def story() -> None:
        hands = Hands()
        hands.may_end.set()
        batcher = Batcher(partial(hands.in_thread, hands.double), most=4)
        assert await asyncio.gather(*map(batcher.do, range(10))) == list(range(0, 20, 2))
        assert [len(batch) for batch in hands.batches] == [4, 4, 2]

    asyncio.run(story())


def test_it_waits_for_company_where_that_is_said() -> None:
    async def story() -> None:
        hands = Hands()
        hands.may_end.set()
        paused = asyncio.Event()

        def pause() -> float:
            paused.set()
            return 0.05

        batcher = Batcher(partial(hands.in_thread, hands.double), pause=pause)
        first = asyncio.create_task(batcher.do(1))
        await paused.wait()
        assert await batcher.do(2) == 4
        assert await first == 2
        assert hands.batches == [[1, 2]]

    asyncio.run(story())


def test_a_failure_reaches_its_batch_alone() -> None:
    async def story() -> None:
        hands = Hands()
        hands.may_end.set()
        batcher = Batcher(partial(hands.in_thread, hands.double), most=2)
        told = await asyncio.gather(*map(batcher.do, (1, 13, 2, 3)), return_exceptions=True)
        assert [type(one) for one in told] == [ValueError, ValueError, int, int]
        assert await batcher.do(7) == 14

    asyncio.run(story())


def test_one_that_was_given_up_takes_nobody_along() -> None:
    async def story() -> None:
        hands = Hands()
        batcher = Batcher(partial(hands.in_thread, hands.double))
        given_up, kept = (asyncio.create_task(batcher.do(number)) for number in (1, 2))
        await hands.begun.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        hands.may_end.set()
        assert await kept == 4

    asyncio.run(story())
