"""When rounds begin. The clock is the test's: waiting moves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from allocations.errors import MovedOn
from allocations.scheduling import round_loop
from allocations.scheduling.round_loop import Pace, run_rounds
from kube.watch_loop import Followed


class Clock:
    """Seconds. `wakes`: after how many of a wait a message comes; it does not where the wait is shorter."""

    def __init__(self, wakes: Sequence[float] = ()) -> None:
        self.now = 0.0
        self.began: list[float] = []
        self._wakes = [*wakes]

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """As `storage.wake.Waker`."""
        after = self._wakes.pop(0) if self._wakes else seconds
        self.now += max(min(after, seconds), 0.0)
        return after < seconds


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether this worker gets the lock."""
    mine = [True]

    @contextmanager
    def lock(_url: str, _name: str, *, stop: threading.Event) -> Iterator[object | None]:
        assert not stop.is_set()
        yield object() if mine[0] else None

    monkeypatch.setattr(round_loop, "leader_lock", lock)
    return mine


def run(
    clock: Clock, rounds: Sequence[Any], *, pace: Pace, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> Followed:
    """`rounds`: of each how long it takes and the pause that it asks for, or the error that it raises."""

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clock.now += timeout or 0.0
            return self.is_set()

    monkeypatch.setattr(round_loop, "threading", SimpleNamespace(Event=Stop))
    left = [*rounds]

    def one_round() -> float:
        clock.began.append(round(clock.now, 3))
        found = left.pop(0) if left else rounds[-1]
        if isinstance(found, Exception):
            raise found
        took, pause = found
        clock.now += took
        return float(pause)

    @contextmanager
    def entered() -> Iterator[Any]:
        yield clock, one_round

    return run_rounds("a", entered(), pace=pace, seconds=seconds, clock=lambda: clock.now)


@pytest.mark.parametrize(
    ("rounds", "wakes", "pace", "want"),
    [
        pytest.param([(0.0, 5.0)], [], Pace(0.5), [0.0, 5.0, 10.0], id="nothing wakes it"),
        pytest.param(
            [(0.0, 5.0)], [0.1, 0.1], Pace(0.5), [0.0, 0.5, 1.0, 6.0, 11.0], id="woken sooner than it may begin"
        ),
        pytest.param([(0.0, 5.0)], [3.0], Pace(0.5), [0.0, 3.0, 8.0], id="woken later than that"),
        pytest.param([(1.0, 5.0)], [0.0] * 9, Pace(0.5, 4), [0.0, 4.0, 8.0], id="long rounds leave time to others"),
        pytest.param([(1.0, 0.0)] * 2 + [(0.0, 9.0)], [], Pace(0.5, 4), [0.0, 1.0, 2.0, 11.0], id="again at once"),
        pytest.param(
            [(0.1, 0.0)] * 2 + [(0.0, 9.0)], [], Pace(0.5), [0.0, 0.5, 1.0, 10.0], id="not sooner than it may"
        ),
    ],
)
def test_when_rounds_begin(
    held: list[bool],
    rounds: list[tuple[float, float]],
    wakes: list[float],
    pace: Pace,
    want: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(wakes)
    assert run(clock, rounds, pace=pace, seconds=12.0, monkeypatch=monkeypatch) is Followed.DONE
    assert clock.began == want


def test_another_worker_has_begun_a_round(held: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    rounds = [(0.0, 5.0), MovedOn("a later round has begun")]
    assert run(clock, rounds, pace=Pace(0.5), seconds=60.0, monkeypatch=monkeypatch) is Followed.STOPPED
    assert clock.began == [0.0, 5.0]


def test_another_worker_has_the_lock(held: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    held[0], clock = False, Clock()
    assert run(clock, [(0.0, 5.0)], pace=Pace(0.5), seconds=60.0, monkeypatch=monkeypatch) is Followed.ELSEWHERE
    assert clock.began == []


def test_the_lock_is_lost(held: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Clock):
        def wait(self, seconds: float, stop: threading.Event) -> bool:
            stop.set()
            return super().wait(seconds, stop)

    clock = Lost()
    assert run(clock, [(0.0, 5.0)], pace=Pace(0.5), seconds=60.0, monkeypatch=monkeypatch) is Followed.STOPPED
    assert clock.began == [0.0]
