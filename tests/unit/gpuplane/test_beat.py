import pytest

from gpuplane import beat
from gpuplane.celery import app, broker_url
from storage.enqueue import WATCH_QUEUE


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param("unix:///var/redis.sock", "redis+socket:///var/redis.sock", id="socket"),
        pytest.param("redis://redis:6379/1", "redis://redis:6379/1", id="network"),
        pytest.param("rediss://:secret@redis:6379/0", "rediss://:secret@redis:6379/0", id="TLS"),
    ],
)
def test_broker_url(given, want):
    assert broker_url(given) == want


def test_entries_expire_before_they_are_sent_again():
    entries = beat.schedule(with_cluster=True)

    assert "gpuplane.canary" in entries
    assert all(entry["options"]["expires"] <= entry["schedule"] for entry in entries.values())


def test_watches_only_with_a_cluster():
    def queues(with_cluster):
        return {entry["options"]["queue"] for entry in beat.schedule(with_cluster=with_cluster).values()}

    assert WATCH_QUEUE not in queues(with_cluster=False)


def test_every_task_of_the_schedule_exists():
    missing = [entry.task for entry in beat.PERIODIC if entry.task.name not in app.tasks]

    assert missing == []
