"""Ties a process to the runner: it dies when the runner dies, by SIGKILL too. Starts every child.

Run as `python -S tether.py <runner's pid> command…`; becomes the command. Kept true: the kernel kills the
command when the runner's main thread is gone (PR_SET_PDEATHSIG outlives exec), and a runner that died before
that was asked for is noticed. Linux only; elsewhere the command runs untied.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie, then become the command."""
    runner, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != runner:
            sys.exit("the runner is gone")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the runner's own command line
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
