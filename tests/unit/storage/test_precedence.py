"""Who goes first: filter and bind before the rest, at the interpreter and at SQLite's writer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from storage.precedence import Precedence, WriterLock, yields_to_first

PATIENT_SECONDS = 30.0


def begun(work: Callable[[], object]) -> threading.Thread:
    """In a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_others_wait_until_it_is_over() -> None:
    """whoever gives way goes on with the end of the last that goes first, not after a time."""
    precedence = Precedence(patience_seconds=PATIENT_SECONDS)
    done: list[str] = []

    def gives_way_first() -> None:
        precedence.give_way()
        done.append("other")

    with precedence:
        other = begun(gives_way_first)
        other.join(0.1)
        assert other.is_alive()
        done.append("first")
    other.join(5)
    assert done == ["first", "other"]


def test_nobody_waits_for_ever_nor_for_nobody() -> None:
    precedence = Precedence(patience_seconds=0.01)
    precedence.give_way()
    with precedence:
        assert precedence.is_first()
        precedence.give_way()  # the thread itself
        other = begun(precedence.give_way)
        other.join(5)
        assert not other.is_alive()
    assert not precedence.is_first()


def test_who_has_the_writers_turn_does_not_give_way() -> None:
    """Whoever goes first may be waiting for that turn: the two would wait for each other."""
    precedence = Precedence(patience_seconds=PATIENT_SECONDS)
    turn = WriterLock(precedence)
    over = threading.Event()

    def first() -> None:
        with precedence, turn:
            over.set()

    with turn:
        other = begun(first)
        while not precedence._inside:
            over.wait(0.001)
        precedence.give_way()
    assert over.wait(5)
    other.join(5)
    with precedence:
        waiting = begun(precedence.give_way)
        waiting.join(0.1)
        assert waiting.is_alive(), "without the turn it does"
    waiting.join(5)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a transaction"])
def test_queries_give_way_outside_transactions(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """who holds locks hurries on: filter may wait for them."""
    asked: list[None] = []
    monkeypatch.setattr("storage.precedence.PRECEDENCE.give_way", lambda: asked.append(None))
    ran: list[Any] = []

    def execute(*query: Any) -> str:
        ran.append(query)
        return "rows"

    context = {"connection": SimpleNamespace(in_atomic_block=inside)}

    assert yields_to_first(execute, "SELECT 1", (), False, context) == "rows"
    assert len(ran) == 1
    assert len(asked) == (0 if inside else 1)


def writers(turn: WriterLock, precedence: Precedence) -> list[str]:
    """The order of three that wait while a fourth writes: two plain ones, and then one that goes first."""
    order: list[str] = []
    lock = threading.Lock()

    def write(name: str) -> None:
        with turn, lock:
            order.append(name)

    def first() -> None:
        with precedence:
            write("first")

    def waiting(count: int) -> None:
        while len(turn._plain) + len(turn._first) < count:
            threading.Event().wait(0.001)

    with turn:
        threads = [begun(lambda: write("plain"))]
        waiting(1)
        threads.append(begun(lambda: write("plain")))
        waiting(2)
        threads.append(begun(first))
        waiting(3)
    for thread in threads:
        thread.join(10)
    return order


def test_first_writers_pass_plain_ones() -> None:
    precedence = Precedence()
    turn = WriterLock(precedence, patience_seconds=PATIENT_SECONDS)
    assert writers(turn, precedence) == ["first", "plain", "plain"]


def test_a_writer_that_waited_long_is_passed_no_more() -> None:
    """Two that go first keep the queue filled; the plain one gets its turn nevertheless."""
    precedence = Precedence()
    turn = WriterLock(precedence, patience_seconds=0.05)
    over = threading.Event()

    def first() -> None:
        while not over.is_set():
            with precedence, turn:
                threading.Event().wait(0.002)

    threads = [begun(first) for _ in range(3)]
    plain = begun(turn.__enter__)
    plain.join(10)
    waited_on = plain.is_alive()
    over.set()
    turn.__exit__(None, None, None)
    for thread in threads:
        thread.join(10)
    assert not waited_on


@pytest.mark.parametrize("given", [False, True], ids=["still waiting", "just given"])
def test_a_writer_that_is_stopped_while_it_waits_takes_no_turn(monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    turn = WriterLock(Precedence())

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if given:
                turn.__exit__(None, None, None)
            raise TimeoutError

    turn.__enter__()
    monkeypatch.setattr(threading, "Event", Stopped)
    with pytest.raises(TimeoutError):
        turn.__enter__()
    assert turn._taken is not given
    assert not turn._plain


def test_the_lock_is_released_after_an_error() -> None:
    turn = WriterLock(Precedence())
    with pytest.raises(ValueError, match="lost"), turn:
        raise ValueError("lost")
    with turn:
        pass
