"""Who tells the cluster of capacity: whoever may write to nodes, and for a process for agents alone a worker."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from audit import requeue_notify as announcing
from audit.requeue_notify import EVERY_SECONDS, LocalGate, SharedGate
from audit.tasks import announce_for_another

pytestmark = pytest.mark.django_db


class Announcer:
    """Notes for which nodes it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, *, node: str = "") -> None:
        self.asked.append(node)


@pytest.fixture
def announcer(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Announcer:
    """In the place of the process's own."""
    made = Announcer()
    settings.GPUPLANE_KUBECONFIG = "/kubeconfig"
    monkeypatch.setattr(announcing, "announcer", lambda *_: made)
    return made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """Tasks that went to the broker."""
    found: list[tuple[str, tuple[Any, ...]]] = []

    def send(name: str, *, args: tuple[Any, ...], **_: Any) -> None:
        found.append((name, args))

    monkeypatch.setattr(current_app._get_current_object(), "send_task", send)
    return found


def test_a_process_for_agents_alone_has_a_worker_announce(
    settings: Settings,
    announcer: Announcer,
    sent: list[tuple[str, tuple[Any, ...]]],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    """NODE-1 it has no rights to nodes; nothing goes out before the commit, and the worker tells by itself."""
    settings.GPUPLANE_AGENTS_ONLY = True
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        announcing.announce(node="n1")
        assert sent == []
    assert (sent, announcer.asked) == ([(announce_for_another.name, ("n1",))], [])

    settings.GPUPLANE_AGENTS_ONLY = False
    with django_capture_on_commit_callbacks(execute=True):
        announce_for_another("n1")
    assert announcer.asked == ["n1"]


def test_a_broker_that_is_away_stops_nobody(
    settings: Settings,
    announcer: Announcer,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    """NODE-1 the next comparison tells."""
    settings.GPUPLANE_AGENTS_ONLY = True

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(current_app._get_current_object(), "send_task", away)
    with django_capture_on_commit_callbacks(execute=True):
        announcing.announce(node="n1")
    assert announcer.asked == []


def test_the_gate_of_one_process() -> None:
    moment = 10.0
    gate = LocalGate(clock=lambda: moment)
    assert gate.pass_seconds() == 0.0
    moment = 10.25
    assert gate.pass_seconds() == pytest.approx(EVERY_SECONDS - 0.25)
    moment = 10.0 + EVERY_SECONDS
    assert gate.pass_seconds() == 0.0


def test_the_gate_of_many(redis_url: str) -> None:
    """Two processes on one Redis announce once a second between them."""
    one, other = SharedGate(redis_url), SharedGate(redis_url)
    assert one.pass_seconds() == 0.0
    assert 0.0 < other.pass_seconds() <= EVERY_SECONDS


def test_the_gate_without_redis(tmp_path: object) -> None:
    gate = SharedGate(f"unix://{tmp_path}/none.sock")
    assert gate.pass_seconds() == 0.0
    assert gate.pass_seconds() > 0.0
