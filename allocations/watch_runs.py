"""Runs of watches and loops as tasks: how one ends decides whether the next is sent at once.

Called by the tasks of `allocations` and of the rooms above. Invariant: a run that failed, or is another worker's, sends
nothing; the beat sends the next.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from allocations.backends import current_backends
from kube.client import Cluster
from kube.errors import KubeError
from kube.watch_loop import Followed
from storage.enqueue import enqueue_next
from storage.redis_client import RedisError

log = structlog.get_logger(__name__)


def run_on_cluster(task: str, of: str, run: Callable[[Cluster], Followed]) -> None:
    """One run of the task `task`, whose subject is `of`; nothing without a cluster."""
    cluster = current_backends().cluster
    if cluster is not None:
        run_and_continue(task, of, lambda: run(cluster))


def run_and_continue(task: str, of: str, run: Callable[[], Followed]) -> None:
    """The same of what runs without a cluster too. Errors of the API server and of Redis are logged."""
    try:
        ended = run()
    except (KubeError, RedisError) as error:
        log.warning("watch.failed", of=of, error=str(error))
        return
    if ended is Followed.DONE:
        enqueue_next(task)
