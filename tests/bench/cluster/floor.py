"""The constant extender: what any extender costs that makes the same writes as gpuplane does.

Run as `python -m tests.bench.cluster.floor CONFIGURATION` (JSON of `Configuration`). Filter answers the next node of a
round robin without looking at the question beyond the pod's uid; bind creates one Lease a device, one after the other
as gpuplane does, and one Binding with annotations of the same names and sizes. Nothing is decided, stored or remembered
but the next number.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import httptools
import msgspec
import orjson
import uvicorn
import uvloop

from tests.bench.cluster.timing import App, Receive, Scope, Send, Timed, answer

PREFIX = "nvidia.com"


class Configuration(msgspec.Struct):
    """How it is started. `count`: GPUs a pod; `connections`: requests to the API server under way at once, at most."""

    port: int
    api: str
    ca: str
    token: str
    namespace: str
    nodes: list[str]
    gpus: int
    count: int
    connections: int = 1000


class _Meta(msgspec.Struct):
    uid: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta


class _Filter(msgspec.Struct):
    Pod: _Pod


class _Bind(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


_FILTER = msgspec.json.Decoder(_Filter)
_BIND = msgspec.json.Decoder(_Bind)


class Refused(Exception):
    """The API server refused."""


class _Connection(asyncio.Protocol):
    """One kept-alive connection to the API server: one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] | None = None
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's over TLS is one in all but name

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if self._done is not None and not self._done.done():
            self._done.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError())

    async def send(self, request: bytes) -> int:
        assert self.transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self.body = b""
        self.transport.write(request)
        return await self._done


class Writer:
    """Posts to the API server over as many connections as are needed at once, kept alive."""

    def __init__(self, given: Configuration) -> None:
        address = given.api.removeprefix("https://")
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self._context = ssl.create_default_context(cafile=given.ca)
        self._head = (
            f"Host: {address}\r\nAuthorization: Bearer {given.token}\r\nAccept: application/json\r\n"
            "User-Agent: floor\r\nContent-Type: application/json\r\n"
        )
        self._idle: list[_Connection] = []
        self._free = asyncio.Semaphore(given.connections)

    async def post(self, path: str, body: object) -> None:
        """Raises Refused."""
        content = orjson.dumps(body)
        request = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        async with self._free:
            connection = await self._connection()
            status = await asyncio.wait_for(connection.send(request), 30)
            if connection.transport is not None:
                self._idle.append(connection)
        if status >= 300:
            raise Refused(f"{status}: {connection.body.decode(errors='replace')}")

    async def _connection(self) -> _Connection:
        while self._idle:
            found = self._idle.pop()
            if found.transport is not None and not found.transport.is_closing():
                return found
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._host, self._port, ssl=self._context)
        return made


class Floor:
    """The extender."""

    def __init__(self, given: Configuration) -> None:
        self._given = given
        self._writer = Writer(given)
        self._slots: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        body = await _body(receive)
        if scope["path"].endswith("/filter"):
            node, _ = self._place(_FILTER.decode(body).Pod.metadata.uid)
            result: dict[str, object] = {
                "NodeNames": [node],
                "Nodes": None,
                "FailedNodes": {},
                "FailedAndUnresolvableNodes": {},
            }
            await answer(send, orjson.dumps({**result, "Error": ""}))
        elif scope["path"].endswith("/bind"):
            await answer(send, orjson.dumps({"Error": await self._bind(_BIND.decode(body))}))
        else:
            await answer(send, b"[]")

    def _place(self, uid: str) -> tuple[str, list[int]]:
        """The same for the same pod: the scheduler may ask twice."""
        slot = self._slots.setdefault(uid, len(self._slots))
        nodes, count = self._given.nodes, self._given.count
        first = slot // len(nodes) * count % self._given.gpus
        return nodes[slot % len(nodes)], list(range(first, first + count))

    async def _bind(self, asked: _Bind) -> str:
        node, minors = self._place(asked.PodUID)
        try:
            for minor in minors:
                await self._writer.post(
                    f"/apis/coordination.k8s.io/v1/namespaces/{self._given.namespace}/leases",
                    self._lease(asked, minor),
                )
            await self._writer.post(
                f"/api/v1/namespaces/{asked.PodNamespace}/pods/{asked.PodName}/binding", _binding(asked, node, minors)
            )
        except (Refused, OSError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return ""

    def _lease(self, asked: _Bind, minor: int) -> dict[str, object]:
        about = {"gpu.scheduling/node": asked.Node, "gpu.scheduling/device-uuid": f"GPU-{asked.Node}-{minor}"}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "namespace": self._given.namespace,
                "name": f"gpu-{asked.Node}-{minor}",
                "annotations": about,
                "labels": {**about, "app.kubernetes.io/managed-by": "gpuplane"},
            },
            "spec": {
                "holderIdentity": f"{asked.PodNamespace}/{asked.PodName}/{asked.PodUID}",
                "acquireTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }


def _binding(asked: _Bind, node: str, minors: list[int]) -> dict[str, object]:
    each = {f"{PREFIX}/gpu-core": "100", f"{PREFIX}/gpu-memory": "80Gi", f"{PREFIX}/gpu-memory-ratio": "100"}
    devices = {"gpu": [{"minor": minor, "resources": each} for minor in minors]}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "namespace": asked.PodNamespace,
            "name": asked.PodName,
            "uid": asked.PodUID,
            "annotations": {
                "gpu.scheduling/allocated": f"{node}:{','.join(map(str, minors))}",
                "gpu.scheduling/visible-devices": ",".join(f"GPU-{node}-{minor}" for minor in minors),
                "scheduling.koordinator.sh/device-allocated": orjson.dumps(devices).decode(),
            },
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def main() -> int:
    """Serve until a signal."""
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Configuration)
    application: App = Timed(Floor(given))
    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=given.port,
        loop="none",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
    )
    uvloop.run(uvicorn.Server(config).serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
