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


def test_beats_on_one_data_folder_share_nothing(settings, tmp_path):
    settings.GPUPLANE_DATA_DIR = tmp_path
    beats = [beat.Scheduler(app, schedule_filename=str(tmp_path / "schedule")) for _ in range(2)]
    names = set(beat.schedule(with_cluster=bool(settings.GPUPLANE_KUBECONFIG)))
    for one in beats:
        assert {name for name, entry in one.schedule.items() if entry.is_due().is_due} == names
        one.schedule["gpuplane.canary"] = next(one.schedule["gpuplane.canary"])
        assert not one.schedule["gpuplane.canary"].is_due().is_due
        one.close()

    assert list(tmp_path.iterdir()) == []


def test_watches_only_with_a_cluster():
    def watching(with_cluster):
        entries = beat.schedule(with_cluster=with_cluster).items()
        return {name for name, entry in entries if entry["options"]["queue"] == WATCH_QUEUE}

    assert watching(with_cluster=False) == {
        "allocations.tasks.run_queues",
        "inference.tasks.run_slots",
    }  # they decide without a cluster too
    assert watching(with_cluster=True) > watching(with_cluster=False)


def test_every_task_of_the_schedule_exists():
    missing = [entry.task for entry in beat.PERIODIC if entry.task.name not in app.tasks]

    assert missing == []
