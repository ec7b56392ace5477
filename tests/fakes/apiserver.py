"""A stand-in for kube-apiserver: real HTTP on loopback, real resourceVersions, faults on demand.

For unit tests of `kube/` and of whatever is built on it (ledger, extender, collection):

    with ApiServer() as server:
        cluster = Cluster(configuration_source(server.kubeconfig(tmp_path / "kubeconfig")))
        server.add_pod("train", namespace="team-a")
        server.faults.append(Fault("POST", r"/binding$", drop="after"))   # applied, answer lost
        ...
        assert server.pods["team-a", "train"]["spec"]["nodeName"] == "n1"

Requests are answered by `tests.fakes.apihandler`; the rules of the objects are in `tests.fakes.apistore`, with what is
left out.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import yaml

from tests.fakes.apihandler import Handler, HttpServer, Seen
from tests.fakes.apikinds import (
    CRDS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    Key,
    Kind,
    Object,
)
from tests.fakes.apistore import Store
from tests.fakes.late import Late

CRD_FOLDER = Path(__file__).parents[2] / "docker" / "helm" / "gpuplane" / "crds"


@cache
def _crds() -> list[Object]:
    """Those of the chart."""
    return [yaml.safe_load(path.read_text()) for path in sorted(CRD_FOLDER.glob("*.yaml"))]


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and path (with query) match the regular expressions.

    `status` answers so without applying; `drop` closes the connection "before" or "after" applying; `stall` keeps the
    request unanswered and unapplied until the event is set. `status` with `drop="after"` applies and then lies. `late`
    applies the request later, whether its client still waits or not; with `drop="before"` the client is hung up on at
    once.
    """

    method: str
    path: str
    status: int | None = None
    reason: str = ""
    message: str = "injected"
    headers: dict[str, str] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    drop: Literal["", "before", "after"] = ""
    stall: threading.Event | None = None
    late: Late | None = None
    times: int = 1


class ApiServer:
    """Start with `with`, or `start()` and `stop()`: a stopped server refuses connections, and starts again on its port
    with its objects.
    """

    def __init__(
        self,
        *,
        token: str = "",
        with_crds: bool = True,
        bookmark_seconds: float = 60.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.with_crds = with_crds
        self.store = self._store()
        self.token = token
        self.tls = tls
        self.bookmark_seconds = bookmark_seconds
        self.faults: list[Fault] = []
        self.requests: list[Seen] = []
        self.gone_as_http = False
        self.mute_watches = 0  # so many of the next watches are accepted and then say nothing at all
        self.bookmarks_asked = 0
        self.closing = False
        self.connections: set[socket.socket] = set()
        self.accounts: dict[str, tuple[str, str]] = {}  # token → (user name, node of its pod), for TokenReviews
        self.lock = threading.Lock()
        self.port = 0
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def _store(self) -> Store:
        made = Store()
        for crd in _crds() if self.with_crds else ():
            made.create(CRDS, "", crd)
        return made

    # -- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.closing = False
        handler = type("BoundHandler", (Handler,), {"api": self})
        self._http = HttpServer(("127.0.0.1", self.port), handler)
        self.port = self._http.server_address[1]
        if self.tls is not None:
            self._http.socket = self.tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-apiserver"
        )
        self._thread.start()

    def stop(self) -> None:
        if self._http is None or self._thread is None:
            return
        self.closing = True
        for fault in self.faults:
            if fault.stall is not None:
                fault.stall.set()
            if fault.late is not None:
                fault.late.drop()
        self._http.shutdown()
        self._thread.join()
        self.drop_connections()
        with self.store.changed:
            self.store.changed.notify_all()
        self._http.server_close()
        self._http = self._thread = None

    def drop_connections(self) -> None:
        """Cut every open connection, watches included."""
        with self.lock:
            for open_socket in self.connections:
                try:
                    open_socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # already closed by the other side

    def fresh(self) -> None:
        """Another cluster at the same address: no objects, no faults, nothing held.

        Nobody watches, and no request is under way.
        """
        for fault in self.faults:
            if fault.late is not None:
                fault.late.drop()
        self.faults.clear()
        self.requests.clear()
        self.store = self._store()

    @property
    def running(self) -> bool:
        """Whether it answers at all."""
        return self._http is not None

    def review(self, spec: Object) -> Object:
        """Status of a TokenReview: a token of `accounts` counts for every audience that is asked about."""
        known = self.accounts.get(spec["token"])
        if known is None:
            return {"authenticated": False, "error": "token lookup failed"}
        user, node = known
        extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
        return {
            "authenticated": True,
            "user": {"username": user, "extra": extra},
            "audiences": spec.get("audiences", []),
        }

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(
        self, path: Path, *, token: str | None = None, cluster: Object | None = None, user: Object | None = None
    ) -> Path:
        """Write a kubeconfig for this server to `path` and give the path back.

        `cluster` and `user` add fields to their sections.
        """
        shown = self.token if token is None else token
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url} | (cluster or {})}],
            "users": [{"name": "fake", "user": ({"token": shown} if shown else {}) | (user or {})}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(text))
        return path

    # -- the world

    def _objects(self, kind: Kind) -> Mapping[Key, Object]:
        with self.store.changed:
            return dict(self.store.objects[kind])

    @property
    def pods(self) -> Mapping[Key, Object]:
        """Keyed by (namespace, name), as all but nodes, namespaces and crds."""
        return self._objects(PODS)

    @property
    def leases(self) -> Mapping[Key, Object]:
        return self._objects(LEASES)

    @property
    def events(self) -> Mapping[Key, Object]:
        return self._objects(EVENTS)

    @property
    def gpuclaims(self) -> Mapping[Key, Object]:
        return self._objects(self.store.kind_of("gpu.scheduling", "v1", "gpuclaims"))

    @property
    def nodes(self) -> Mapping[str, Object]:
        return {name: item for (_, name), item in self._objects(NODES).items()}

    @property
    def namespaces(self) -> Mapping[str, Object]:
        return {name: item for (_, name), item in self._objects(NAMESPACES).items()}

    @property
    def crds(self) -> Mapping[str, Object]:
        return {name: item for (_, name), item in self._objects(CRDS).items()}

    def add_namespace(self, name: str) -> None:
        if name not in self.namespaces:
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}})

    def add_pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        limits: dict[str, str] | None = None,
        node: str = "",
        phase: str = "Pending",
        spec: Object | None = None,
    ) -> Object:
        """A pod as the API server would store it; its namespace is made if missing.

        Returns the object (uid in metadata).
        """
        self.add_namespace(namespace)
        body: Object = {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": limits or {}, "requests": limits or {}}}
            ]
        }
        body |= {"nodeName": node} if node else {}
        meta: Object = {"name": name, "annotations": annotations, "labels": labels}
        return self.store.create(
            PODS,
            namespace,
            {"metadata": {k: v for k, v in meta.items() if v}, "spec": body | (spec or {}), "status": {"phase": phase}},
        )

    def set_pod_phase(self, name: str, phase: str, *, namespace: str = "default") -> None:
        body = {"status": {"phase": phase}}
        self.store.patch(PODS, namespace, name, body, content_type="application/merge-patch+json", subresource="status")

    def remove_pod(self, name: str, *, namespace: str = "default") -> None:
        """Gone for good, as after the kubelet's last word."""
        self.store.delete(PODS, namespace, name, {"gracePeriodSeconds": 0})

    def add_node(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        capacity: dict[str, str] | None = None,
        ready: bool = True,
    ) -> Object:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        status = {
            "capacity": capacity or {"cpu": "8"},
            "allocatable": capacity or {"cpu": "8"},
            "conditions": conditions,
        }
        return self.store.create(
            NODES, "", {"metadata": {"name": name, "labels": labels or {}}, "spec": {}, "status": status}
        )

    def remove_node(self, name: str) -> None:
        self.store.delete(NODES, "", name, {})

    def add_gpuclaim(self, name: str, spec: Object, *, namespace: str = "default") -> Object:
        self.add_namespace(namespace)
        return self.store.create(
            self.store.kind_of("gpu.scheduling", "v1", "gpuclaims"),
            namespace,
            {"metadata": {"name": name}, "spec": spec},
        )

    def add_lease(
        self, name: str, holder: str, *, namespace: str = "gpuplane-system", annotations: dict[str, str] | None = None
    ) -> Object:
        """A Lease as a stranger would make it: no labels of ours."""
        self.add_namespace(namespace)
        meta = {"name": name, "annotations": annotations or {}}
        return self.store.create(LEASES, namespace, {"metadata": meta, "spec": {"holderIdentity": holder}})

    def compact(self) -> None:
        """Every resourceVersion and continue token handed out so far is too old from now on."""
        self.store.compact()

    def send_bookmarks(self) -> None:
        """A bookmark on every watch that allows them, now."""
        with self.store.changed:
            self.bookmarks_asked += 1
            self.store.changed.notify_all()

    # -- faults

    def take_mute(self) -> bool:
        with self.lock:
            mute, self.mute_watches = self.mute_watches > 0, max(self.mute_watches - 1, 0)
            return mute

    def take_fault(self, method: str, target: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.method, method) and re.search(fault.path, target):
                    fault.times -= 1
                    return fault
        return None
