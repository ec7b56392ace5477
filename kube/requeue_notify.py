"""Makes kube-scheduler retry refused pods by changing an annotation of ours on a node.

Called through `audit.requeue_notify` after capacity or a claim appeared without a cluster event. Invariants: a call
neither waits nor raises; every call is followed by a patch, at the rate that the gate allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from kube import nodes
from kube.client import Cluster
from kube.errors import KubeError, NotFoundInCluster, TemporaryKubeError
from kube.keys import CAPACITY_CHANGED, MODEL_LABEL
from kube.listing import decode_chunk
from kube.objects import Named
from kube.resources import NODES

AGAIN_SECONDS: Final = 5.0
"""Pause after a failed patch."""
THREAD: Final = "announce"

log = structlog.get_logger(__name__)


class Gate(Protocol):
    """The rate limit of announcements."""

    def pass_seconds(self) -> float:
        """0: announce now; else the seconds to wait before the next call."""


class Announcer:
    """One for each process and cluster. A daemon thread patches; it starts with the first call, again after a fork."""

    def __init__(self, cluster: Callable[[], Cluster | None], gate: Gate) -> None:
        self._cluster = cluster
        self._gate = gate
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._busy = False
        self._closed = False
        self._node = ""
        self._seen = ""

    def ask(self, *, node: str = "") -> None:
        """Announce, on `node` if it exists, else on any."""
        with self._changed:
            if self._closed:
                return
            self._wanted = True
            self._node = node or self._node
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread can be started; the next call tries again
                    log.warning("announce.failed", node=node, error=str(error))
                    return
                self._thread = thread
            self._changed.notify_all()

    def settled(self, *, seconds: float) -> bool:
        """Wait until every announcement has been patched; False on time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._wanted or self._busy), seconds)

    def close(self) -> None:
        """Stop the thread and wait for a patch under way."""
        with self._changed:
            self._closed, self._wanted = True, False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
            wait = self._gate.pass_seconds() or self._once()
            if wait:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, wait)

    def _once(self) -> float:
        """Patch once; the seconds to wait before the next attempt, 0 when done."""
        with self._changed:
            if self._closed:
                return 0.0
            node, self._wanted, self._node, self._busy = self._node, False, "", True
        try:
            cluster = self._cluster()
            if cluster is not None:
                self._patch(cluster, node)
        except TemporaryKubeError as error:
            log.warning("announce.failed", node=node, error=str(error))
            with self._changed:
                self._wanted = not self._closed
                self._node = self._node or node
            return AGAIN_SECONDS
        except KubeError as error:
            log.error("announce.refused", node=node, error=str(error))  # noqa: TRY400 - the answer says it all
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        return 0.0

    def _patch(self, cluster: Cluster, node: str) -> None:
        for name in dict.fromkeys((node, self._seen)):
            if name and _annotate(cluster, name):
                self._seen = name
                return
        name = _any_node(cluster)
        if name and _annotate(cluster, name):
            self._seen = name


def _annotate(cluster: Cluster, name: str) -> bool:
    """Change the annotation; False if the node does not exist."""
    moment = datetime.now(UTC).isoformat(timespec="microseconds")
    try:
        nodes.annotate(cluster, name=name, annotations={CAPACITY_CHANGED: moment})
    except NotFoundInCluster:
        return False
    log.debug("announce.done", node=name)
    return True


def _any_node(cluster: Cluster) -> str:
    """A node with devices, else any; empty where there is none."""
    for selector in (MODEL_LABEL, None):
        body = cluster.request("GET", NODES.path(), query={"labelSelector": selector, "limit": 1})
        found = decode_chunk(body, Named, request=f"GET {NODES.path()}").items
        if found:
            return found[0].metadata.name
    return ""
