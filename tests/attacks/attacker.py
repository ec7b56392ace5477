"""Runs attacks for so many seconds, in a process of its own:
`python -m tests.attacks.attacker TARGET.json SECONDS NAME…`.

Invariants: an attack that fails by a defect of its own ends the process with status 1 and a traceback, so that no
window passes because nobody attacked.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path

from tests.attacks.registry import all_attacks
from tests.attacks.target import Target


async def run(target: Target, seconds: float, names: list[str]) -> None:
    """All at once, until the time is over. Raises what an attack raises."""
    known = all_attacks()
    tasks = [asyncio.create_task(known[name].run(target), name=name) for name in names]
    done, under_way = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in under_way:
        task.cancel()
    ended = await asyncio.gather(*under_way, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result
    for task in done:
        task.result()
        raise RuntimeError(f"the attack {task.get_name()} ended by itself")


def main() -> int:
    """Command line."""
    path, seconds, *names = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The attacker is another machine in earnest: here it may use the cores that nobody else wants.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(run(Target.read(Path(path)), float(seconds), names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
