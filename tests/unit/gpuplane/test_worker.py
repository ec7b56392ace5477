from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.worker.consumer import consumer as celerys
from kombu.asynchronous import set_event_loop

from gpuplane.celery import app
from gpuplane.worker import Consumer


class Changing:
    """A set that another thread changes whenever somebody reads it."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("Set changed size during iteration")

    def __len__(self) -> int:
        return 1


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """That of a worker as the Procfile has it, not started."""
    worker = app.WorkController(pool="threads", concurrency=1)
    worker.consumer.connection = app.connection_for_read()
    monkeypatch.setattr(celerys, "active_requests", Changing())
    monkeypatch.setattr(celerys, "reserved_requests", Changing())
    yield worker.consumer
    worker.hub.close()
    set_event_loop(None)


def test_workers_have_it(consumer: Any) -> None:
    assert isinstance(consumer, Consumer)


def test_tasks_end_while_a_lost_connection_is_cleared_away(consumer: Consumer) -> None:
    """The worker does not end, and has no connection left that keeps it from making the next."""
    consumer.on_connection_error_after_connected(ConnectionError("lost"))
    assert consumer.connection is None


def test_tasks_end_while_messages_are_forgotten(consumer: Consumer) -> None:
    consumer.on_close()
