"""The tree of the stored queues.

Called where queues are written and by the queueing loop. Invariants: a queue that breaks a rule with others, which
admission refuses, is left out with all below it, the youngest first; the others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from access.errors import BadInput, Conflict
from access.selectors import teams_by_namespace
from claims.manifest_metadata import ManifestInvalid
from claims.models import GpuQueue
from claims.queue_manifests import parse_queue_spec, queue_of
from claims.queue_tree import DEFAULT, Queue, QueueInvalid, QueueTree


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """`tree`: of all that can stand in it; `invalid`: why others are left out, by name; `stored`: whether there are
    any; `default_stored`: whether somebody made the queue `default`; `teams`: those that own a namespace.
    """

    tree: QueueTree
    invalid: Mapping[str, str]
    stored: bool
    default_stored: bool
    teams: Mapping[str, frozenset[str]]

    def barred(self, queue: str, namespace: str) -> str:
        """Why pods of the namespace may not be in the queue, empty where they may.

        A queue that lists namespaces takes, besides theirs, pods of namespaces of the same teams; any other takes all.
        """
        found = self.tree.queues.get(queue)
        if found is None or not found.namespaces or namespace in found.namespaces:
            return ""
        theirs = frozenset[str]().union(*(self.teams.get(one, frozenset()) for one in found.namespaces))
        if theirs & self.teams.get(namespace, frozenset()):
            return ""
        return f"queue {queue} is of other teams than namespace {namespace}"


def stored_queues() -> StoredQueues:
    """The queues as they are stored, oldest first."""
    invalid: dict[str, str] = {}
    queues: list[Queue] = []
    names = set()
    for name, spec in GpuQueue.objects.order_by("created_at", "name").values_list("name", "spec"):
        names.add(name)
        try:
            queues.append(queue_of(name, parse_queue_spec(spec)))
        except ManifestInvalid as error:
            invalid[name] = error.message
    while True:
        try:
            tree = QueueTree(queues)
        except QueueInvalid as error:
            invalid[error.queue] = error.message
            queues = [queue for queue in queues if queue.name != error.queue]
        else:
            return StoredQueues(tree, invalid, bool(names), DEFAULT in names, teams_by_namespace())


class _Directory:
    """The queues as this process read them last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: tuple[float, StoredQueues] | None = None

    def get(self, seconds: float) -> StoredQueues:
        """The queues as they were at most so many seconds ago. Threads wait while one of them reads."""
        with self._lock:
            if self._read is None or time.monotonic() - self._read[0] >= seconds:
                began = time.monotonic()
                self._read = began, stored_queues()
            return self._read[1]

    def cached(self) -> StoredQueues | None:
        """The queues as they were read last; None before the first read. Reads nothing."""
        return None if self._read is None else self._read[1]

    def forget(self) -> None:
        """For tests that swap databases."""
        with self._lock:
            self._read = None


DIRECTORY: Final = _Directory()
"""For filter and admission, which read it for every pod."""
FRESH_SECONDS: Final = 0.5


def check_with_others(name: str, spec: Mapping[str, Any]) -> None:
    """Refuse a queue that breaks a rule together with the stored ones. Raises BadInput."""
    others = [queue for queue in stored_queues().tree.queues.values() if queue.name != name]
    try:
        QueueTree([*others, queue_of(name, parse_queue_spec(spec))])
    except QueueInvalid as error:
        raise BadInput(error.message, field=_FIELDS.get(error.rule, "spec"), rule=error.rule) from error


def check_no_children(name: str) -> None:
    """Refuse to delete a queue that others name as their parent. Raises Conflict."""
    children = sorted(GpuQueue.objects.filter(spec__parent=name).values_list("name", flat=True)[:10])
    if children:
        raise Conflict(f"queue {name} has queues below it: {', '.join(children)}")


_FIELDS = {"parent": "spec.parent", "cycle": "spec.parent", "namespace": "spec.namespaces"}
