"""Wakes kube-scheduler's refused pods by changing an annotation of ours on a node (DESIGN §3, Announcing).

Called after the commit by every room in which capacity or a claim appears without a cluster event. Kept true:
asking never waits and never raises; what was asked for is patched in the end (the trailing edge too), and at
most once in `EVERY_SECONDS` over all processes that share a Redis; without Redis, once a process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import redis
import structlog

from kube import nodes
from kube.client import Cluster
from kube.errors import KubeError, NotFoundInCluster, TemporaryKubeError
from kube.keys import CAPACITY_CHANGED, MODEL_LABEL
from kube.listing import Named, decode
from kube.resources import NODES
from kube.shared import shared_cluster

EVERY_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 5.0
"""After a patch that the API server did not take."""
REDIS_SECONDS: Final = 1.0
GATE_KEY: Final = "gpuplane:announced"
THREAD: Final = "announce"

log = structlog.get_logger(__name__)


class Gate(Protocol):
    """Who may announce now."""

    def pass_seconds(self) -> float:
        """0: pass, and nobody else for `EVERY_SECONDS`; else the seconds to wait before asking again."""


class LocalGate:
    """Once a process. `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = float("-inf")

    def pass_seconds(self) -> float:
        """See Gate."""
        now = self._clock()
        if now < self._next:
            return self._next - now
        self._next = now + EVERY_SECONDS
        return 0.0


class SharedGate:
    """Once over all processes on a Redis; while it is away, once a process."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
        self._local = LocalGate()

    def pass_seconds(self) -> float:
        """See Gate."""
        try:
            if self._client.set(GATE_KEY, b"", nx=True, px=int(EVERY_SECONDS * 1000)):
                return 0.0
            left = self._client.pttl(GATE_KEY)
        except (redis.RedisError, OSError) as error:
            log.info("announce.without_redis", why=str(error))
            return self._local.pass_seconds()
        return max(int(left), 1) / 1000


class _Node(Named):
    """Only the name is read."""


class _Nodes(msgspec.Struct):
    items: list[_Node] = []


class Announcer:
    """One a process and cluster. A daemon thread patches; it starts when first asked, again after a fork."""

    def __init__(self, cluster: Callable[[], Cluster | None], gate: Gate) -> None:
        self._cluster = cluster
        self._gate = gate
        self._changed = threading.Condition()
        self._process = 0
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._busy = False
        self._closed = False
        self._node = ""
        self._seen = ""

    def ask(self, *, node: str = "") -> None:
        """Announce soon, on `node` where it still exists, else on any."""
        with self._changed:
            if self._closed:
                return
            self._wanted = True
            self._node = node or self._node
            if self._process != os.getpid():
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settled(self, *, seconds: float) -> bool:
        """Wait until all that was asked for has been patched; False when that took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._wanted or self._busy), seconds)

    def close(self) -> None:
        """Announce no more. Returns when the thread has ended, so after a patch that is under way."""
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
        """Patch once; the seconds to wait before the next try, 0 when there is nothing left to tell."""
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
    """Change the annotation; False where there is no such node."""
    moment = datetime.now(UTC).isoformat(timespec="microseconds")
    try:
        nodes.annotate(cluster, name=name, annotations={CAPACITY_CHANGED: moment})
    except NotFoundInCluster:
        return False
    log.debug("announce.done", node=name)
    return True


def _any_node(cluster: Cluster) -> str:
    """A node with devices that we advertise, else any; empty where there is none."""
    for selector in (MODEL_LABEL, None):
        body = cluster.request("GET", NODES.path(), query={"labelSelector": selector, "limit": 1})
        found = decode(body, _Nodes, request=f"GET {NODES.path()}").items
        if found:
            return found[0].metadata.name
    return ""


@lru_cache(maxsize=4)
def announcer(kubeconfig: str, redis_url: str) -> Announcer:
    """The process's announcer for a cluster (kubeconfig as for `kube.shared`)."""
    return Announcer(lambda: shared_cluster(kubeconfig), SharedGate(redis_url))
