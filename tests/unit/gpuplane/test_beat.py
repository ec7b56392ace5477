from datetime import UTC, datetime, timedelta

import pytest
import time_machine

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


def test_entries_expire_soon():
    entries = beat.schedule(with_cluster=True)

    assert "gpuplane.canary" in entries
    assert all(entry["options"]["expires"] == max(entry["schedule"], 30) for entry in entries.values())


class Beat(beat.Scheduler):
    """One that notes what it sends."""

    producer = None

    def __init__(self, **options):
        self.sent = []
        self.now = 1000.0
        super().__init__(app, **options)

    def clock(self):
        return self.now

    def apply_entry(self, entry, producer=None):
        self.sent.append(entry.name)

    def sends(self):
        """The names that one tick sends."""
        self.sent.clear()
        self.tick()
        return sorted(self.sent)


def test_beats_on_one_data_folder_share_nothing(settings, tmp_path):
    settings.GPUPLANE_DATA_DIR = tmp_path
    beats = [Beat(schedule_filename=str(tmp_path / "schedule")) for _ in range(2)]
    names = sorted(beat.schedule(with_cluster=bool(settings.GPUPLANE_KUBECONFIG)))
    for one in beats:
        assert one.sends() == names
        assert one.sends() == []
        one.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wall", [pytest.param(-3600, id="back"), pytest.param(3600, id="ahead")])
def test_a_clock_that_is_set_changes_nothing(settings, wall):
    settings.GPUPLANE_KUBECONFIG = "somewhere"
    one = Beat()
    one.sends()
    every_two = {entry.task.name for entry in beat.PERIODIC if entry.seconds == 2}
    with time_machine.travel(datetime.now(UTC) + timedelta(seconds=wall)):
        assert one.tick() == 2.0
        one.now += 2
        assert set(one.sends()) == every_two
        assert one.tick() == 2.0
        one.now += 8
        assert set(one.sends()) == {entry.task.name for entry in beat.PERIODIC if entry.seconds <= 10}


def test_a_signal_within_a_send_ends_it(monkeypatch):
    one = Beat()
    monkeypatch.setattr(one, "apply_entry", lambda entry, producer: one.close())
    with pytest.raises(SystemExit):
        one.tick()


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
