"""Calls the webhook views that look pods up, without threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


async def _at_once(function: Callable[..., Any], /, *args: Any) -> Any:
    return function(*args)


def answer_of(view: Callable[..., Awaitable[bytes]], body: bytes) -> bytes:
    """The view's answer to a body."""
    try:
        view(body, _at_once, _at_once).__await__().send(None)
    except StopIteration as done:
        answer: bytes = done.value
        return answer
    raise AssertionError("the view waits")
