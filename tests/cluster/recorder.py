"""An API server for the chart alone, and a stand-in for gpuplane that remembers which webhooks were asked about what.

Used by the tests of the chart. The server is apart from that of the other modules: etcd and kube-apiserver only,
nothing runs, so what one test applies stands in nobody's way.
"""

import json
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.chart import NAMESPACE, RESERVATIONS, cluster_objects, render
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import free_ports

Json = dict[str, Any]
TEAM = "team"
FOLLOWED_SECONDS = 20.0
"""The API server follows its own configuration (webhooks, flow schemas) a moment after it was written."""


@contextmanager
def bare_server() -> Iterator[ControlPlane]:
    """An API server with the namespaces of the chart and of a team. Nothing there would ever finish deleting one."""
    folder = Path(tempfile.mkdtemp(prefix="gpuplane-chart-"))
    plane = ControlPlane(folder)
    try:
        plane.etcd.start()
        plane.apiserver.start()
        for name in (NAMESPACE, RESERVATIONS, TEAM):
            plane.namespace(name)
        yield plane
    finally:
        plane.apiserver.stop()
        plane.etcd.stop()
        plane.api.close()
        shutil.rmtree(folder, ignore_errors=True)


def followed(true: Callable[[], object], *, what: str) -> None:
    """Ask until it is true: the API server tells nobody when it has begun to follow a configuration."""
    deadline = time.monotonic() + FOLLOWED_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"after {FOLLOWED_SECONDS:.0f} s still not: {what}"
        time.sleep(0.1)


@contextmanager
def applied(api: Api, objects: list[Json]) -> Iterator[None]:
    """These objects, until the block ends. Definitions stay: deleting them takes seconds."""
    api.apply(*objects)
    try:
        yield
    finally:
        gone = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
        api.kubectl(
            "delete", "--ignore-not-found", "--wait=false", "-f", "-", given="\n---\n".join(map(json.dumps, gone))
        )


def rights(values: Json | None = None) -> list[Json]:
    """What the chart brings for a cluster, without the webhooks."""
    return [one for one in cluster_objects(render(values)) if "Webhook" not in one["kind"]]


class Recorder:
    """Answers every review with yes and remembers which path was asked about which object."""

    def __init__(self, plane: ControlPlane) -> None:
        self.heard: list[tuple[str, str]] = []
        (port,) = free_ports(1)
        self.url = f"https://127.0.0.1:{port}"
        pair = plane.authority.issue("recorder")
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                recorder.heard.append((self.path.split("?")[0].removeprefix("/webhooks/"), request["name"]))
                review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
                body = json.dumps({**review, "response": {"uid": request["uid"], "allowed": True}}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, name: str) -> set[str]:
        """The paths that were asked about the object of this name."""
        return {path for path, told in self.heard if told == name}
