"""What all threads of a process share is made once, also when many ask before it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from audit.requeue_notify import announcer
from kube.shared import shared_cluster
from storage.redis_client import Purpose, shared_client

THREADS = 8


@pytest.mark.parametrize(
    ("made", "shared"),
    [
        ("kube.shared.Cluster", lambda: shared_cluster("/no/such/file")),
        ("storage.redis_client.client", lambda: shared_client("redis://127.0.0.1:1/9", Purpose.STATUS)),
        ("audit.requeue_notify.Announcer", lambda: announcer("/no/such/file", "redis://127.0.0.1:1/8")),
    ],
    ids=["cluster", "redis", "announcer"],
)
def test_made_once(monkeypatch: pytest.MonkeyPatch, made: str, shared: Callable[[], object]) -> None:
    """SCALE-7 one client, with one bound on its connections, however many threads ask first."""
    both = threading.Barrier(2)

    def slow(*_: object, **__: object) -> object:
        """Takes until another one is being made, or 0.2 s."""
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return object()

    monkeypatch.setattr(made, slow)
    with ThreadPoolExecutor(THREADS) as threads:
        asked = [threads.submit(shared) for _ in range(THREADS)]
    assert len({id(one.result()) for one in asked}) == 1
