"""Who tells the cluster of capacity: whoever may write to nodes, and for a process for agents alone a worker."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from audit import announce as announcing
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


def test_a_process_for_agents_alone_has_a_worker_tell(
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
