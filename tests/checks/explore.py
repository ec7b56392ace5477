"""Every Hypothesis test again and again with new examples, for so many minutes:
`python -m tests.checks.explore MINUTES [PYTEST WORDS…]`.

Ends with the first round that fails (1), or when the time is over (0): a round that is under way then is interrupted,
and what it found is kept all the same. See tests/exploring.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tests.exploring import FAILED

PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "hypothesis", "--hypothesis-profile=explore"]
END_SECONDS = 60.0
"""An interrupted round has that long to stop its servers."""


def main(minutes: float, words: list[str]) -> int:
    """The status to exit with."""
    deadline = time.monotonic() + minutes * 60
    rounds = 0
    while (left := deadline - time.monotonic()) > 0:
        rounds += 1
        print(f"exploring: round {rounds}, {left / 60:.0f} min left; what fails is kept in {FAILED}", flush=True)
        with subprocess.Popen([*PYTEST, *words]) as running:
            try:
                status = running.wait(left)
            except subprocess.TimeoutExpired:
                _interrupt(running)
                break
        if status:
            return status
    print(f"exploring: nothing found in {rounds} rounds")
    return 0


def _interrupt(running: subprocess.Popen[bytes]) -> None:
    """No test of the round has failed, or it would have ended; an example that did is kept, and is the next
    exploration's first.
    """
    running.send_signal(signal.SIGINT)
    try:
        running.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        running.kill()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
