"""The workload that a pod belongs to, and what the queues decide about a waiting pod by.

Called by `allocations.pod_request`. Invariants: a pod of a gang is always admitted by the queues; others are while
queues are stored, unless they are in a `default` that nobody made.
"""

from __future__ import annotations

from typing import Final

import msgspec

from claims.queue_manifests import borrows_idle, gang_named_by, is_preemptible, queue_named_by
from claims.queue_tree import DEFAULT
from claims.queues import DIRECTORY, FRESH_SECONDS, StoredQueues
from kube.objects import Pod


class Membership(msgspec.Struct, frozen=True, omit_defaults=True):
    """`queue`: the label's, empty without one; `gang`: name of the GpuGang, empty without one; `created`: the pod's
    creationTimestamp; `priority`: spec.priority; `borrows_idle`: its label says so.
    """

    queue: str = ""
    gang: str = ""
    preemptible: bool = True
    created: str = ""
    priority: int = 0
    borrows_idle: bool = False


NO_MEMBERSHIP: Final = Membership()
"""Of a holder that is no pod."""


def membership_of(pod: Pod, gang_ref: str) -> Membership:
    """What the pod's labels and its claim say. `gang_ref`: of the claim."""
    created = pod.metadata.creation_timestamp or ""
    return Membership(
        queue_named_by(pod),
        gang_ref or gang_named_by(pod),
        is_preemptible(pod),
        created[:32] if created.isascii() and created.isprintable() else "",
        max(-(2**31), min(pod.priority, 2**31 - 1)),
        borrows_idle(pod),
    )


def queue_of(membership: Membership, namespace: str, queues: StoredQueues) -> str:
    """The queue that the pod is in: `default` where its label names one that is gone."""
    if membership.queue:
        return DEFAULT if names_no_queue(membership, queues) else membership.queue
    return queues.tree.of_namespace.get(namespace, DEFAULT)


def names_no_queue(membership: Membership, queues: StoredQueues) -> bool:
    """Whether the pod's label names a queue that does not exist."""
    named = membership.queue
    return bool(named) and named not in queues.tree.queues and named not in queues.invalid


def queues_admit(membership: Membership, namespace: str) -> bool:
    """Whether the queues admit the pod, by the queues as this process read them last."""
    return bool(membership.gang) or is_queued(membership, namespace, DIRECTORY.get(FRESH_SECONDS))


def is_queued(membership: Membership, namespace: str, queues: StoredQueues) -> bool:
    """Whether the queues admit the pod, and not kube-scheduler's order."""
    if membership.gang:
        return True
    return queues.stored and (queues.default_stored or queue_of(membership, namespace, queues) != DEFAULT)
