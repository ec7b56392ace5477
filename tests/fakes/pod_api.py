"""A stand-in for the API server, over TLS on loopback, that has one pod: for `python -m agent.reserve`.

It reads and merge-patches the pod as the real one does: tokens, 404 and 409 with a Status, a patch under a UID. A test
makes it answer otherwise for a while with `say`.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.certificates import Authority

NAMESPACE = "gpuplane-reservation"
NAME = "gpu-reservation-n1-g1"
UID = "uid-1"
ANNOTATION = "run.ai/reserve_for_gpu_index"
Json = dict[str, Any]


@dataclass
class Answer:
    """One answer instead of the usual one. `lost`: the request is carried out, and the connection ends instead."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    lost: bool = False


@dataclass
class Request:
    method: str
    path: str
    content_type: str
    token: str
    body: Any


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_about: object) -> None:
        """Nothing: clients of these tests break connections off."""


class PodApi:
    """The server. `folder` is the ServiceAccount's; `host`: that of its certificate."""

    def __init__(self, folder: Path, *, gpus: int = 1, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.pod: Json | None = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "annotations": {"other": "stays"}},
            "spec": {"containers": [{"name": "reservation", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
        }
        self.token = "token-1"
        self.requests: list[Request] = []
        self.answering = threading.Lock()
        """Held while a request is answered."""
        self.arrived = threading.Semaphore(0)
        """Released with each request, before it is answered."""
        self._answers: list[Answer] = []
        authority = Authority(folder)
        pair = authority.issue("api-server", hosts=(host,))
        (folder / "token").write_text(self.token)
        self._server = _Server(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def say(self, *answers: int | Answer) -> None:
        """What the next requests are answered; a number is a status."""
        self._answers += [Answer(one) if isinstance(one, int) else one for one in answers]

    def rotate(self, token: str, *, file: bool = True) -> None:
        """Take this token from now on, and none of before; `file`: the kubelet has written it already."""
        self.token = token
        if file:
            (self.folder / "token").write_text(token)

    @property
    def annotation(self) -> str | None:
        """The pod's annotation."""
        return None if self.pod is None else self.pod["metadata"]["annotations"].get(ANNOTATION)

    def sent(self) -> list[str]:
        """The methods of all requests."""
        return [one.method for one in self.requests]

    def environment(self) -> dict[str, str]:
        """What the kubelet gives the container, and where the tests have its files."""
        return {
            "POD_NAME": NAME,
            "POD_NAMESPACE": NAMESPACE,
            "POD_UID": UID,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "GPUPLANE_SERVICE_ACCOUNT_DIR": str(self.folder),
        }

    def answer(self, request: Request) -> Answer:
        """What the API server answers to this."""
        if self._answers and not self._answers[0].lost:
            return self._answers.pop(0)
        if request.token != self.token:
            return _status(401, "Unauthorized", "Unauthorized")
        if self.pod is None or request.path != f"/api/v1/namespaces/{NAMESPACE}/pods/{NAME}":
            return _status(404, "NotFound", f'pods "{NAME}" not found')
        if request.method == "PATCH":
            if request.content_type != "application/merge-patch+json":
                return _status(415, "UnsupportedMediaType", "not a merge patch")
            meta = request.body["metadata"]
            if meta.get("uid", self.pod["metadata"]["uid"]) != self.pod["metadata"]["uid"]:
                return _status(409, "Conflict", "Precondition failed: UID in precondition")
            self.pod["metadata"]["annotations"] |= meta["annotations"]
        return Answer(200, body=json.dumps(self.pod).encode())

    def lose(self) -> bool:
        """Whether this answer is to be lost."""
        if self._answers and self._answers[0].lost:
            self._answers.pop(0)
            return True
        return False

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30
            wbufsize = 65536

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                raw = self.rfile.read(length)
                request = Request(
                    self.command,
                    self.path,
                    self.headers.get("Content-Type", ""),
                    self.headers.get("Authorization", "").removeprefix("Bearer "),
                    json.loads(raw) if raw else None,
                )
                api.arrived.release()
                with api.answering:
                    answer = api.answer(request)
                    lost = api.lose()
                    api.requests.append(request)
                    if lost:
                        self.close_connection = True
                    else:
                        self._send(answer)

            do_PATCH = do_GET  # noqa: N815 - the name that http.server looks for

            def _send(self, answer: Answer) -> None:
                body = answer.body if answer.body is not None else _status(answer.status, "", "scripted").body or b""
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                """Nothing."""

        return Handler


def _status(code: int, reason: str, message: str) -> Answer:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return Answer(code, body=json.dumps(body).encode())


@contextmanager
def pod_api(folder: Path, *, gpus: int = 1, host: str = "127.0.0.1") -> Iterator[PodApi]:
    """A server for one test."""
    made = PodApi(folder, gpus=gpus, host=host)
    try:
        yield made
    finally:
        made.close()
