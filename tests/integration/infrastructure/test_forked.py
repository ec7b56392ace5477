"""The fork server of the tests: its processes are as new ones, and none is left."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.servers import forked

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TESTS_")}
TELL = """
import json, os, sys
from django.conf import settings
ours = {"access", "allocations", "gpuplane", "kube", "nodes", "tests"}
print(json.dumps([
    sys.argv[1:], os.getcwd(), os.environ.get("ONE"), "TWO" in os.environ, sys.stdin.read(),
    settings.configured, sorted(ours & set(sys.modules)), sorted(map(int, os.listdir("/proc/self/fd"))), __name__,
]))
print("to errors", file=sys.stderr)
sys.exit(7)
"""
ENDLESS = "import time\nprint('on', flush=True)\ntime.sleep(600)"


def test_a_process_begins_with_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, folder, environment and standard input; nothing of the product is loaded, no file is open."""
    monkeypatch.setenv("TWO", "of the test alone")
    environment = {**ENVIRONMENT, "ONE": "1"}
    with forked.start("-c", TELL, "a", "b", environment=environment, folder=tmp_path, given=b"read me") as process:
        assert process.wait(30) == 7
    told = json.loads(process.output)
    assert told == [["a", "b"], str(tmp_path), "1", False, "read me", False, [], [0, 1, 2, 3], "__main__"]
    assert process.errors == "to errors\n"


def test_a_module_is_found_in_the_repository() -> None:
    done = forked.run("manage", "help", "--commands", environment=ENVIRONMENT)
    assert done.poll() == 0, done.errors
    assert b"bootstrap\n" in done.output


def test_a_fault_is_reported_as_python_does() -> None:
    done = forked.run("-c", "import atexit; atexit.register(print, 'at the end'); 1 / 0", environment=ENVIRONMENT)
    assert (done.poll(), done.output) == (1, b"at the end\n")
    assert done.errors.endswith("ZeroDivisionError: division by zero\n")


def test_a_signal_is_reported_as_subprocess_does() -> None:
    with forked.start("-c", ENDLESS, environment=ENVIRONMENT) as process:
        _until_it_runs(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize("new_session", [True, False])
def test_a_server_has_a_session_of_its_own(new_session: bool) -> None:
    with forked.start("-c", ENDLESS, environment=ENVIRONMENT, new_session=new_session) as process:
        _until_it_runs(process)
        assert (os.getsid(process.pid) == process.pid) is new_session


@pytest.mark.skipif(sys.platform != "linux", reason="holds a process by a pidfd, which Linux alone has")
def test_none_outlives_who_asked_for_it() -> None:
    """At the end of the context, and when the connection breaks, as it does with a test run that is killed."""
    with forked.start("-c", ENDLESS, environment=ENVIRONMENT) as process:
        _until_it_runs(process)
        first = os.pidfd_open(process.pid)
    assert process.poll() == -signal.SIGKILL
    with forked.start("-c", ENDLESS, environment=ENVIRONMENT) as process:
        _until_it_runs(process)
        second = os.pidfd_open(process.pid)
        process._runs._connection.shutdown(2)  # type: ignore[attr-defined]  # of a forked one
        ended, _, _ = select.select([second], [], [], 30)
        assert ended == [second]
        process._runs._status = -signal.SIGKILL  # type: ignore[attr-defined]  # nobody tells of it any more
        process._runs._connection.close()  # type: ignore[attr-defined]  # of a forked one
    for descriptor in (first, second):
        os.close(descriptor)


def _until_it_runs(process: forked.Process) -> None:
    ends = time.monotonic() + 30
    while process.output != b"on\n":
        assert process.poll() is None, process.errors
        assert time.monotonic() < ends
        time.sleep(0.01)
