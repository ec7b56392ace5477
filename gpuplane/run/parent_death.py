"""Runs a command that dies when the supervisor dies, by SIGKILL too. Starts every child.

Run as `python -S parent_death.py <supervisor's pid> command…`; replaced by the command. Invariants: the kernel kills
the command when the supervisor's main thread is gone (PR_SET_PDEATHSIG outlives exec), also where the supervisor died
before. Linux only; elsewhere the command outlives the supervisor.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then exec the command."""
    supervisor, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != supervisor:
            sys.exit("the supervisor is gone")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the supervisor's own command line
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
