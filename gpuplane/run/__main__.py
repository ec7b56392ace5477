"""`python -m gpuplane.run`: everything gpuplane needs, in one terminal."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Check Python, then hand over to the runner; every refusal is a sentence, not a traceback."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is where an older one is told so
        sys.stderr.write(f"gpuplane needs Python 3.11 or newer; this is {sys.version.split()[0]}.\n")
        return 1
    os.umask(0o077)  # the database holds sessions and the log names pods: what is written belongs to its owner alone
    try:
        from gpuplane import settings  # noqa: F401 - read once here, so that a bad one is told before anything starts
    except Exception as error:
        # The class lies in a package whose loading has just failed, so it cannot be imported to be named.
        if type(error).__name__ != "BadSetting":
            raise
        sys.stderr.write(f"{error}\n")
        return 1
    return _run()


def _run() -> int:
    from gpuplane.doors.plan import DoorRefused
    from gpuplane.run.lock import AlreadyRunning
    from gpuplane.run.procfile import BadProcfile
    from gpuplane.run.runner import run
    from gpuplane.run.surroundings import CannotRun

    try:
        return run()
    except (CannotRun, AlreadyRunning, DoorRefused, BadProcfile) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
