import pytest

from gpuplane import beat
from gpuplane.celery import WATCH_QUEUE, broker_url


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

    assert "gpuplane.tasks.canary" in entries
    assert all(entry["options"]["expires"] <= entry["schedule"] for entry in entries.values())


def test_watches_only_with_a_cluster():
    def queues(with_cluster):
        return {entry["options"]["queue"] for entry in beat.schedule(with_cluster=with_cluster).values()}

    assert WATCH_QUEUE not in queues(with_cluster=False)


def test_every_task_of_the_schedule_exists():
    missing = [entry.task for entry in beat.PERIODIC if beat.find_task(entry.task) is None]

    assert missing == []


def test_defect_inside_a_room_is_not_taken_for_a_missing_task(tmp_path, monkeypatch):
    (tmp_path / "broken_room.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        beat.find_task("broken_room.task")
    assert beat.find_task("no_room_at_all.task") is None
