"""Tasks that rooms have sent: on which queue, and for how long they are worth running."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from kombu.exceptions import OperationalError

from gpuplane.celery import WATCHES
from kube.watch_loop import Followed
from nodes.tasks import watch_nodes
from storage.enqueue import enqueue_next

Sent = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Tasks that went to the broker."""
    found: Sent = []
    monkeypatch.setattr(current_app._get_current_object(), "send_task", lambda name, **more: found.append((name, more)))
    return found


@pytest.mark.parametrize("task", WATCHES)
def test_the_next_turn_goes_to_the_workers_of_watches(sent: Sent, task: str) -> None:
    enqueue_next(task)
    assert sent == [(task, {"queue": "watch", "expires": 30})]


@pytest.mark.parametrize("ended", Followed)
def test_a_watch_goes_on_after_a_turn_that_went_well(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, ended: Followed
) -> None:
    monkeypatch.setattr("nodes.tasks.shared_cluster", lambda _: object())
    monkeypatch.setattr("nodes.watching.watch_nodes", lambda **_: ended)
    watch_nodes()
    assert [name for name, _ in sent] == (["nodes.tasks.watch_nodes"] if ended is Followed.DONE else [])


def test_a_broker_that_is_away_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn ends as a failed one, and the beat sends the next."""

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(current_app._get_current_object(), "send_task", away)
    with pytest.raises(OperationalError):
        enqueue_next(WATCHES[0])
