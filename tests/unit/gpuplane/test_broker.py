from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.messaging import Consumer

from gpuplane import broker
from gpuplane.celery import app, broker_url
from tests.servers import redis


@pytest.mark.parametrize(
    "url", ["redis://somewhere:6379/0", "rediss://somewhere:6379/0", broker_url("unix:///var/redis.sock")]
)
def test_connections_are_of_our_transport(url: str) -> None:
    assert isinstance(app.connection_for_read(url).transport, broker.Transport)


def test_given_up_while_redis_is_away(mortal_redis: redis.Mortal) -> None:
    """A connection that is lost with a message unacknowledged and a BRPOP under way, cleared as Celery clears it.

    The first attempt breaks off, at the BRPOP and at the queue for remote control, which nobody can delete now;
    the second finds a transport without settings; and at last the message's task has ended. Each may fail, but
    with errors that count as a lost connection.
    """
    messages: list[Any] = []
    connection = app.connection_for_read(broker_url(mortal_redis.url))
    lost = connection.connection_errors
    tasks = Consumer(connection, [Queue("tests")], on_message=messages.append)
    tasks.consume()
    control = Queue("control", exchange=Exchange("control", type="fanout"), auto_delete=True)
    Consumer(connection.channel(), [control], on_message=messages.append).consume()
    connection.Producer().publish({}, routing_key="tests", serializer="json")
    while not messages:
        connection.drain_events(timeout=30)
    connection.transport.cycle.on_poll_start()
    assert connection.default_channel._in_poll
    mortal_redis.stop()

    connection.collect()
    _expect(connection.close, lost)
    _expect(messages[0].ack, lost)


def _expect(deed: Callable[[], None], errors: tuple[type[Exception], ...]) -> None:
    """It goes well, or fails as a lost connection does."""
    with contextlib.suppress(*errors):
        deed()


def test_sending_without_a_broker_fails_at_once(tmp_path: Path) -> None:
    """Requests send tasks: they cannot wait for the seconds in which a broker might come back.

    Workers have their own way of waiting.
    """
    began = time.monotonic()
    with (
        app.connection_for_write(broker_url(f"unix://{tmp_path / 'redis.sock'}")) as connection,
        pytest.raises(OperationalError),
    ):
        app.send_task("a.task", connection=connection, retry=False)
    assert time.monotonic() - began < 2
