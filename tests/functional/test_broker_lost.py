"""A worker whose broker goes away, or refuses, goes on with the same process when the broker is well again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as client

from gpuplane.celery import app, broker_url
from gpuplane.run import procfile
from tests.servers import redis

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0


class Worker:
    """The worker of the Procfile, with the tasks of `broken_broker`."""

    def __init__(self, folder: Path, *, redis_url: str, **more: str) -> None:
        self.log = folder / "worker.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLANE_")}
        environment |= {"GPUPLANE_DATA_DIR": str(folder), "GPUPLANE_REDIS_URL": redis_url, **more}
        python, *words = procfile.read(ROOT / "Procfile")["worker"]
        assert python == "python"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words, "--include", "tests.functional.broken_broker"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def until(self, what: Callable[[], object]) -> None:
        """Wait for what comes in the end as long as the worker lives."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what():
            assert self.process.poll() is None, f"the worker has ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"waited in vain; the worker said:\n{self.log.read_text()}"
            time.sleep(0.05)

    def said(self, words: str) -> bool:
        """Whether its log has these words."""
        return words in self.log.read_text()

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        """Whatever happened before."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path, mortal_redis: redis.Mortal) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def go(**more: str) -> Worker:
        workers.append(Worker(tmp_path, redis_url=mortal_redis.url, **more))
        return workers[-1]

    yield go
    for worker in workers:
        worker.end()


def send(redis_url: str, task: str, *arguments: str) -> None:
    """Send a task to the worker of the test."""
    with app.connection_for_write(broker_url(redis_url)) as connection:
        app.send_task(task, arguments, connection=connection)


@pytest.mark.skipif(sys.platform != "linux", reason="holds a process by a pidfd, which Linux alone has")
def test_redis_dies_under_a_running_task(
    start: Callable[..., Worker], mortal_redis: redis.Mortal, tmp_path: Path
) -> None:
    """Its message can be neither given back nor acknowledged, and the worker takes both for a lost connection."""
    worker = start(REDIS_TO_KILL=str(mortal_redis.process_id))
    worker.until(lambda: worker.said("ready."))
    send(mortal_redis.url, "tests.hold", str(tmp_path))
    worker.until(lambda: worker.said("Connection to broker lost"))

    mortal_redis.stop()
    mortal_redis.start()
    worker.until((tmp_path / "held").exists)
    send(mortal_redis.url, "tests.note", str(tmp_path / "noted"))
    worker.until((tmp_path / "noted").exists)

    assert worker.said("the connection of this channel was given up"), "the moment was not met"
    assert worker.stop() == 0


def test_redis_is_full(start: Callable[..., Worker], mortal_redis: redis.Mortal, tmp_path: Path) -> None:
    """A broker that answers, but refuses to store, is one more that has to be waited for."""
    with client.Redis.from_url(mortal_redis.url) as connection:
        connection.config_set("maxmemory", 1)
        worker = start()
        worker.until(lambda: worker.said("command not allowed when used memory"))
        connection.config_set("maxmemory", 0)
    send(mortal_redis.url, "tests.note", str(tmp_path / "noted"))
    worker.until((tmp_path / "noted").exists)

    assert worker.stop() == 0
