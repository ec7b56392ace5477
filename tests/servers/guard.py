"""Runs one server for a test session and ends it with the session, however that ends.

Started by `tests.servers.session.start`, as a script, in a process group of its own, so that Ctrl-C
reaches pytest first. It waits for three things at once: the server ends, the session's process ends
(a SIGKILL of pytest too), or a SIGTERM asks it to stop. Then the server is gone and so is its folder.
Only the standard library: it must start quickly.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

GRACE_SECONDS = 15.0


def main() -> None:
    """`guard.py --watch PID --folder F [--uid U --gid G] --stop-signal S -- command…`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--watch", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--stop-signal", type=int, default=signal.SIGTERM)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()

    os.setsid()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)

    log = given.folder / "server.log"
    with log.open("ab") as output:
        server = subprocess.Popen(
            given.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            user=given.uid,
            group=given.gid,
            extra_groups=[] if given.uid is not None else None,
            cwd=given.folder,
        )
    _wait_for_end(watched=given.watch, server=server, awake=awake)
    if server.poll() is None:
        server.send_signal(given.stop_signal)
        try:
            server.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(given.folder, ignore_errors=True)
    # A server that ended by itself leaves its log for the one who waits for it to read.


def _wait_for_end(*, watched: int, server: subprocess.Popen[bytes], awake: int) -> None:
    if not hasattr(os, "pidfd_open"):  # not Linux: look once a second
        while server.poll() is None and _runs(watched):
            if select.select([awake], [], [], 1.0)[0]:
                return
        return
    try:
        session = os.pidfd_open(watched)
    except ProcessLookupError:
        return
    select.select([awake, session, os.pidfd_open(server.pid)], [], [])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main()
