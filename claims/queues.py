"""The tree of the stored queues.

Called where queues are written and by the queueing loop. Invariants: a queue that breaks a rule with others, which
admission refuses, is left out with all below it, the youngest first; the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from access.errors import BadInput
from claims.manifest_metadata import ManifestInvalid
from claims.models import GpuQueue
from claims.queue_manifests import parse_queue_spec, queue_of
from claims.queue_tree import Queue, QueueInvalid, QueueTree


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """`tree`: of all that can stand in it; `invalid`: why others are left out, by name; `untouched`: no queue is
    stored but a `default` without quotas, so that pods are placed in the order in which they come.
    """

    tree: QueueTree
    invalid: Mapping[str, str]
    untouched: bool


def stored_queues() -> StoredQueues:
    """The queues as they are stored, oldest first."""
    invalid: dict[str, str] = {}
    queues: list[Queue] = []
    for name, spec in GpuQueue.objects.order_by("created_at", "name").values_list("name", "spec"):
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
            return StoredQueues(tree, invalid, untouched=not queues)


def check_with_others(name: str, spec: Mapping[str, Any]) -> None:
    """Refuse a queue that breaks a rule together with the stored ones. Raises BadInput."""
    others = [queue for queue in stored_queues().tree.queues.values() if queue.name != name]
    try:
        QueueTree([*others, queue_of(name, parse_queue_spec(spec))])
    except QueueInvalid as error:
        raise BadInput(error.message, field=_FIELDS.get(error.rule, "spec"), rule=error.rule) from error


_FIELDS = {"parent": "spec.parent", "cycle": "spec.parent", "namespace": "spec.namespaces"}
