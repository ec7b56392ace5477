import asyncio
import io
import os
import signal
import sys
from pathlib import Path

import pytest

from gpuplane.run import child as children
from gpuplane.run.child import Child, GaveUp, pause_seconds
from gpuplane.run.console import Console


@pytest.fixture
def console(tmp_path):
    made = Console(tmp_path / "log", out=io.StringIO())
    yield made
    made.close()


@pytest.fixture
def make(console, tmp_path):
    descriptor = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)

    def child(code, **options):
        return Child(
            "web",
            [sys.executable, "-c", code],
            environment=os.environ,
            folder=tmp_path,
            console=console,
            lock_fd=descriptor,
            **options,
        )

    yield child
    os.close(descriptor)


async def until_line(tmp_path, text):
    path = tmp_path / "log" / "web.log"
    async with asyncio.timeout(20):
        while not (path.exists() and text in path.read_text()):  # noqa: ASYNC110 - written by another process
            await asyncio.sleep(0.02)


def test_pauses_grow_and_stay_bounded():
    pauses = [pause_seconds(failures) for failures in range(1, 12)]
    assert pauses[:4] == [0.5, 1, 2, 4]
    assert max(pauses) == children.LONGEST_PAUSE_SECONDS
    assert pauses == sorted(pauses)


async def test_once_gives_the_status_and_keeps_the_lines(make, tmp_path):
    assert await make("print('hello'); raise SystemExit(3)").once() == 3
    assert (tmp_path / "log" / "web.log").read_text() == "hello\n"


async def test_essential_child_that_keeps_dying_ends_the_run(make, monkeypatch):
    monkeypatch.setattr(children, "pause_seconds", lambda failures: 0)
    monkeypatch.setattr(children, "GIVE_UP", 3)

    with pytest.raises(GaveUp, match="web died 3 times"):
        await make("raise SystemExit(1)", essential=True).start()


async def test_child_that_died_is_started_again(make, tmp_path, monkeypatch):
    monkeypatch.setattr(children, "pause_seconds", lambda failures: 0)
    child = make("import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)")
    child.start()
    await until_line(tmp_path, "pid")
    first = (tmp_path / "log" / "web.log").read_text().split()[1]
    os.kill(int(first), signal.SIGKILL)
    await until_line(tmp_path, "pid " + first + "\npid ")
    await child.stop(grace_seconds=5)
    assert child.up_seconds == 0


async def test_child_that_ignores_sigterm_is_killed(make, tmp_path):
    child = make("import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)")
    supervision = child.start()
    await until_line(tmp_path, "ready")
    await child.stop(grace_seconds=0.1)
    assert supervision.done()
    assert "process.killed" in (tmp_path / "log" / "run.log").read_text()


async def test_very_long_line_is_shown_in_parts(make, tmp_path):
    await make("print('x' * 200_000)").once()
    assert (tmp_path / "log" / "web.log").read_text().replace("\n", "") == "x" * 200_000


def test_board_sets_a_grown_file_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("gpuplane.run.console.LARGEST_BYTES", 100)
    board = Console(tmp_path, out=io.StringIO())
    for number in range(30):
        board.line("web", f"line {number}")
    board.close()
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["web.log", "web.log.1"]
    assert (tmp_path / "web.log").read_text().endswith("line 29\n")


def test_banner_reaches_no_file(tmp_path):
    out = io.StringIO()
    board = Console(tmp_path, out=out)
    board.banner(["password"])
    board.close()
    assert "password" in out.getvalue()
    assert list(tmp_path.iterdir()) == []
