"""An answer that comes just as a thread has waited a second for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from kube import event_loop


class Late(Future[str]):
    """Finishes between the end of a wait and the look at it."""

    def __init__(self, outcome: str | Exception) -> None:
        super().__init__()
        self._outcome = outcome

    def result(self, timeout: float | None = None) -> str:
        if self.done():
            return super().result(timeout)
        if isinstance(self._outcome, Exception):
            self.set_exception(self._outcome)
        else:
            self.set_result(self._outcome)
        raise TimeoutError


async def work() -> str:
    return "not reached"


def answered(outcome: str | Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    def given(coroutine: Coroutine[Any, Any, str], _: asyncio.AbstractEventLoop) -> Future[str]:
        coroutine.close()
        return Late(outcome)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", given)
    return event_loop.run(work())


def test_an_answer_within_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the answer, and no time-out of a request that was applied."""
    assert answered("done", monkeypatch) == "done"


def test_an_error_within_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match="its own"):
        answered(TimeoutError("its own"), monkeypatch)
