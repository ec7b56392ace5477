"""Binds beside the rounds: what fails there is told."""

import threading
import time

from structlog.testing import capture_logs

from inference.models import Slot
from inference.rounds.slow_binds import SlowBinds


def test_what_nothing_foresaw_is_told_and_the_slot_is_tried_again() -> None:
    tries = threading.Semaphore(0)

    def bind(_: Slot) -> None:
        tries.release()
        raise ValueError("nobody foresaw this")

    slow = SlowBinds(bind)
    ends = time.monotonic() + 30
    with capture_logs() as logs:
        while len(logs) < 2:
            slow.begin(Slot(pk="slot"))
            tries.acquire(timeout=0.05)
            assert time.monotonic() < ends, logs
    slow.close()
    assert {(line["event"], str(line["exc_info"])) for line in logs} == {("slots.bind_failed", "nobody foresaw this")}
