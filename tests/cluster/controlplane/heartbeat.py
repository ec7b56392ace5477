"""An agent as far as gpuplane sees one: a session, an inventory, samples, and the kubelet's record where a test has
one.
"""

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    def kubelet_gave(self, given: Mapping[str, Sequence[int]]) -> None:
        """Tell what stands in the kubelet's record: pod UID → minors. Returns once it was acknowledged."""
        node = self._name
        entries = [
            CheckpointEntry(uid, "main", "nvidia.com/gpu", [f"GPU-{node}-{minor}" for minor in minors])
            for uid, minors in given.items()
        ]
        self._checkpoints.put(entries)
        self._wake()
        self._checkpoints.join()

    def _wake(self) -> None:
        """Have it look at once; one that has ended looks no more."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._told.set)

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
            self._wake()
            thread.join(20)
        assert not failures, failures

    async def _sessions(self, opened: threading.Event, ended: threading.Event) -> None:
        """One after the other, while gpuplane is stopped and started again."""
        self._loop = asyncio.get_running_loop()
        while not ended.is_set():
            try:
                await self._session(opened, ended)
            except (ConnectionClosed, InvalidHandshake, OSError) as error:
                if not (opened.is_set() and _is_restart(error)):
                    raise
                await asyncio.to_thread(ended.wait, 0.2)

    async def _session(self, opened: threading.Event, ended: threading.Event) -> None:
        async with connect(self._url, additional_headers=self._headers, compression=None, proxy=None) as socket:
            await self._say(socket, Hello(*self._stamp(), self._name, "1", []))
            await self._say(socket, Inventory(*self._stamp(), self._body))
            opened.set()
            while not ended.is_set():
                self._told.clear()
                while not self._checkpoints.empty():  # one that is not acknowledged is told again by the next session
                    await self._say(socket, Checkpoint(*self._stamp(), self._checkpoints.queue[0]))
                    self._checkpoints.get()
                    self._checkpoints.task_done()
                known: list[int | float | None] = [10] * self._gpus
                await socket.send(encode(Sample(*self._stamp(), utilisation_percent=known)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._told.wait(), 1.0)

    async def _say(self, socket: ClientConnection, frame: AgentFrame) -> None:
        await socket.send(encode(frame))
        try:
            answer = await asyncio.wait_for(socket.recv(), 10)
        except TimeoutError:
            raise AssertionError(f"{type(frame).__name__} was not acknowledged within 10 s") from None
        assert isinstance(answer, bytes)
        assert decode_ack(answer).problem == ""

    def _stamp(self) -> tuple[str, int, float]:
        self._seq += 1
        return self._boot, self._seq, time.time()


def _is_restart(error: ConnectionClosed | InvalidHandshake | OSError) -> bool:
    """Whether it comes of a server that goes away or is not ready yet."""
    if isinstance(error, ConnectionClosed):
        return error.rcvd is not None and error.rcvd.code == RESTART
    return not isinstance(error, InvalidStatus) or error.response.status_code == 503
