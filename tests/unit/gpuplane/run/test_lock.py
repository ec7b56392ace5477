import os
import subprocess
import sys

import pytest

from gpuplane.run import lock


def test_second_runner_learns_who_runs(tmp_path):
    first = lock.take(tmp_path)
    try:
        with pytest.raises(lock.AlreadyRunning, match=f"process {os.getpid()}"):
            lock.take(tmp_path)
    finally:
        os.close(first)
    os.close(lock.take(tmp_path))


def test_child_that_outlives_its_runner_keeps_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.2)
    descriptor = lock.take(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    os.close(descriptor)
    (tmp_path / "run.lock").write_text("999999999")
    try:
        with pytest.raises(lock.AlreadyRunning):
            lock.take(tmp_path)
    finally:
        child.communicate(b"\n")
    os.close(lock.take(tmp_path))
