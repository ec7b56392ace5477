"""Writes the result annotations of a resized share on its pod, as the Binding would carry them now.

Called after the ledger's step, and by a comparison where a pod's annotations are behind. Invariants: the ledger is read
after the pod, and the write is conditional on the pod as it was read, so of two writers the one with older amounts
fails; nothing but results is written.
"""

from __future__ import annotations

import uuid
from typing import Final

import structlog

from allocations import ledger
from allocations.choices import State
from allocations.scheduling.bindings import binding_of
from kube import pods
from kube.client import Cluster
from kube.errors import ConflictInCluster, NotFoundInCluster
from kube.keys import ATTEMPT
from kube.objects import Pod

TRIES: Final = 5
"""Every conflict means that somebody else wrote to the pod."""

log = structlog.get_logger(__name__)


def write_result(cluster: Cluster, allocation_id: uuid.UUID) -> bool:
    """Bring the pod's annotations up to date; whether they were behind. Raises `kube.errors`.

    A pod that is gone, replaced or not bound to the node has nothing to be written.
    """
    live = ledger.read_live(allocation_id)
    if live is None or not live.holder.pod_uid:
        return False
    namespace, name = live.holder.namespace, live.holder.pod_name
    for _ in range(TRIES):
        pod = pods.find(cluster, namespace=namespace, name=name)
        live = ledger.read_live(allocation_id)
        if pod is None or live is None or live.state is not State.BOUND or not _is_holder(pod, live):
            return False
        behind = _behind(pod, live)
        if not behind:
            return False
        write = pods.annotate(
            cluster,
            namespace=namespace,
            name=name,
            uid=pod.metadata.uid,
            annotations=behind,
            version=pod.metadata.resource_version,
        )
        try:
            cluster.run(write)
        except NotFoundInCluster:
            return False
        except ConflictInCluster:
            continue
        return True
    log.info("resize.result_contended", pod=live.holder.label)  # a comparison tries again
    return False


def _is_holder(pod: Pod, live: ledger.Live) -> bool:
    return pod.metadata.uid == live.holder.pod_uid and pod.spec.node_name == live.node


def _behind(pod: Pod, live: ledger.Live) -> dict[str, str]:
    """The results that differ. The attempt at binding is over, whatever its number."""
    due = binding_of(live).annotations
    return {key: value for key, value in due.items() if key != ATTEMPT and pod.annotations.get(key) != value}
