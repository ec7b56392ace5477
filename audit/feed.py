"""The live feed: hints to browsers that something happened, after the commit.

Called by `audit.services` alone; read by the consumers of `WS /ws/fleet/` from the Redis channel
`gpuplane:events`, one JSON object a message: `{"id", "at", "kind", "actor", "namespace", "name",
"node", "claim", "allocation", "message"}`. Kept true: publishing never waits and never fails; one
daemon thread a process drains a bounded queue. With Redis down, or the queue full, hints are
dropped and that is logged once: the rows are the truth. `id` is the row's and only ever grows, but
has gaps (rolled-back transactions): a reader that was away asks for the rows after the last id it saw.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

import orjson
import redis
import structlog
from django.conf import settings

from audit.happenings import Happening

CHANNEL = "gpuplane:events"
MOST_WAITING = 10_000
MOST_A_BATCH = 200
TIMEOUT_SECONDS = 2.0
GATHER_SECONDS = 0.02
"""Between the first message of a batch and its sending, so that speaking to Redis does not compete with the very
answer that caused it (a tenth of a filter's time), and a burst is one message on the wire."""

log = structlog.get_logger(__name__)


class Feed:
    """A bounded queue and the thread that empties it into Redis. Started when first used, again after a fork."""

    def __init__(self, *, size: int = MOST_WAITING) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._process = 0
        self._waiting: queue.Queue[bytes] = queue.Queue(size)
        self._dropping = False

    def put(self, message: bytes) -> None:
        """Queue one message; drop it when the queue is full."""
        if self._process != os.getpid():
            self._start()
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._dropped("the queue is full")

    def _start(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                return
            self._waiting = queue.Queue(self._size)
            self._process = os.getpid()
            threading.Thread(target=self._drain, args=(self._waiting,), name="audit-feed", daemon=True).start()

    def _drain(self, waiting: queue.Queue[bytes]) -> None:
        client = redis.Redis.from_url(
            settings.GPUPLANE_REDIS_URL, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )
        while True:
            batch = [waiting.get()]
            time.sleep(GATHER_SECONDS)
            while len(batch) < MOST_A_BATCH and not waiting.empty():
                batch.append(waiting.get_nowait())
            try:
                with client.pipeline(transaction=False) as pipeline:
                    for message in batch:
                        pipeline.publish(CHANNEL, message)
                    pipeline.execute()
            except (redis.RedisError, OSError) as error:
                self._dropped(str(error))
            else:
                self._dropping = False

    def _dropped(self, why: str) -> None:
        if not self._dropping:
            self._dropping = True
            log.warning("audit.feed.dropping", why=why)


_feed = Feed()


def publish(happenings: Iterable[tuple[int, Happening]]) -> None:
    """Hint at events by (row id, event). Never blocks, never raises."""
    for row_id, happening in happenings:
        _feed.put(orjson.dumps(message_of(row_id, happening)))


def message_of(row_id: int, happening: Happening) -> dict[str, Any]:
    """What a browser is sent of an event."""
    return {
        "id": row_id,
        "at": happening.at,
        "kind": str(happening.kind),
        "actor": happening.actor,
        "namespace": happening.namespace,
        "name": happening.name,
        "node": happening.node,
        "claim": happening.claim,
        "allocation": happening.allocation_id,
        "message": happening.message,
    }
