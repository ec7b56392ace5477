"""`python -m gpuplane.run`: everything gpuplane needs, in one terminal."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Check Python, then hand over to the supervisor; every refusal is a message, not a traceback."""
    if sys.version_info < (3, 11):  # noqa: UP036 - older ones are refused here
        sys.stderr.write(f"gpuplane needs Python 3.11 or newer; this is {sys.version.split()[0]}.\n")
        return 1
    os.umask(0o077)  # files are their owner's alone: the database holds sessions, the log names pods
    from gpuplane.errors import BadSetting
    from gpuplane.listeners.plan import ListenAddressRefused
    from gpuplane.run.lock import AlreadyRunning
    from gpuplane.run.preflight import CannotRun
    from gpuplane.run.procfile import BadProcfile

    try:
        from gpuplane.run.supervisor import run  # reads the settings

        return run()
    except (BadSetting, CannotRun, AlreadyRunning, ListenAddressRefused, BadProcfile) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
