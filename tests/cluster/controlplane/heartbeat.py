"""An agent as far as gpuplane sees one: a session, an inventory, samples, and the kubelet's record where a test has
one.
"""

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agent.protocol import (
    AgentFrame,
    Checkpoint,
    CheckpointEntry,
    Hello,
    Inventory,
    Sample,
    decode_ack,
    encode,
)
from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.stack import Stack

RESTART = 1012
"""Close code of a server that is being restarted."""


class Heartbeat:
    """An agent of one node that says hello and inventory and then samples each second, until it is told to be
    silent.
    """

    def __init__(self, stack: Stack, body: Json) -> None:
        self._name = body["name"]
        self._body = body
        self._gpus = sum(1 for device in body["devices"] if device["type"] == "gpu")
        self._url = f"ws://127.0.0.1:{stack.doors.main}/ws/agents/{self._name}/"
        issued = stack.gpuplane.rest.post("/api/v1/tokens/", json={"scope": "agent", "node": self._name})
        self._headers = {"Authorization": f"Bearer {issued.raise_for_status().json()['token']}"}
        self._boot = uuid.uuid4().hex
        self._seq = 0
        self._checkpoints: queue.Queue[list[CheckpointEntry]] = queue.Queue()

    def kubelet_gave(self, given: Mapping[str, Sequence[int]]) -> None:
        """Tell what stands in the kubelet's record: pod UID → minors. Returns once it was acknowledged."""
        node = self._name
        entries = [
            CheckpointEntry(uid, "main", "nvidia.com/gpu", [f"GPU-{node}-{minor}" for minor in minors])
            for uid, minors in given.items()
        ]
        self._checkpoints.put(entries)
        self._checkpoints.join()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """The session lasts as long as the block."""
        opened, ended = threading.Event(), threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self._sessions(opened, ended))
            except Exception as error:  # noqa: BLE001 - told to the test below
                failures.append(error)
            finally:
                opened.set()

        thread = threading.Thread(target=run, name="agent")
        thread.start()
        assert opened.wait(20)
        try:
            yield
        finally:
            ended.set()
            thread.join(20)
        assert not failures, failures

    async def _sessions(self, opened: threading.Event, ended: threading.Event) -> None:
        """One after the other, while gpuplane is stopped and started again."""
        while not ended.is_set():
            try:
                await self._session(opened, ended)
            except (ConnectionClosed, ConnectionRefusedError) as error:
                restarted = isinstance(error, ConnectionRefusedError) or (error.rcvd and error.rcvd.code == RESTART)
                if not (restarted and opened.is_set()):
                    raise
                await asyncio.to_thread(ended.wait, 0.2)

    async def _session(self, opened: threading.Event, ended: threading.Event) -> None:
        async with connect(self._url, additional_headers=self._headers, compression=None, proxy=None) as socket:
            await self._say(socket, Hello(*self._stamp(), self._name, "1", []))
            await self._say(socket, Inventory(*self._stamp(), self._body))
            opened.set()
            while not ended.is_set():
                while not self._checkpoints.empty():
                    entries = self._checkpoints.get()
                    await self._say(socket, Checkpoint(*self._stamp(), entries))
                    self._checkpoints.task_done()
                known: list[int | float | None] = [10] * self._gpus
                await socket.send(encode(Sample(*self._stamp(), utilisation_percent=known)))
                await asyncio.to_thread(ended.wait, 1.0)

    async def _say(self, socket: ClientConnection, frame: AgentFrame) -> None:
        await socket.send(encode(frame))
        answer = await asyncio.wait_for(socket.recv(), 10)
        assert isinstance(answer, bytes)
        assert decode_ack(answer).problem == ""

    def _stamp(self) -> tuple[str, int, float]:
        self._seq += 1
        return self._boot, self._seq, time.time()
