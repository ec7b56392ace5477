"""A listener as `gpuplane.serve` opens it, with an application of the test's own, on a loopback port and an event loop
of its own thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvloop

from gpuplane import serve
from gpuplane.listeners.certificates import Certificates
from gpuplane.listeners.limits import Limits
from gpuplane.listeners.plan import ListenAddress, Tls

PATIENCE_SECONDS = 20.0
LARGE_BYTES = 64 << 20
ASK = b"GET /read HTTP/1.1\r\nHost: here\r\n\r\n"


class Application:
    """Answers by path: `/read` reads the body and says its size, `/early` does not read it, `/held` waits for `go`
    before it does.
    """

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.left = threading.Semaphore(0)
        self.go = asyncio.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["type"] == "websocket":
            self.begun.release()
            if scope["path"] == "/held":
                await self.go.wait()
            await self.echo(receive, send)
        else:
            self.begun.release()
            await getattr(self, scope["path"].strip("/"))(receive, send)

    async def read(self, receive, send):
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.release()
                return
            size, more = size + len(message["body"]), message["more_body"]
        await answer(send, 200, str(size).encode())

    async def early(self, _receive, send):
        await answer(send, 401, b"no")

    async def held(self, receive, send):
        await self.go.wait()
        await self.read(receive, send)

    async def large(self, _receive, send):
        await answer(send, 200, bytes(LARGE_BYTES))

    async def echo(self, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        self.left.release()

    async def live(self, receive, send):
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})


async def answer(send, status, body):
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Front:
    """It runs."""

    def __init__(self, server, application, loop, port):
        self.server = server
        self.application = application
        self.loop = loop
        self.port = port

    @property
    def connections(self):
        """How many places are taken."""
        (accepting,) = self.server.servers
        return accepting._connections._count

    def settled(self, connections):
        """Wait until so many places are taken."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.connections != connections:
            assert time.monotonic() < deadline, f"{self.connections} connections, not {connections}"
            time.sleep(0.01)

    def go(self):
        """Let the held requests read."""
        self.loop.call_soon_threadsafe(self.application.go.set)

    def connect(self):
        """A socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def said(self, pieces):
        """All that the server says to a client that sends these pieces and then nothing more, until it is closed.

        The answer to ASK is waited for.
        """
        found = b""
        with self.connect() as wire:
            for piece in pieces:
                try:
                    wire.sendall(piece)
                except OSError:
                    break  # refused in the middle: what was said before is still there
                if piece is ASK:
                    found += answered(wire)
            return found + heard(wire)


def answered(wire):
    """One answer, with its body."""
    found = b""
    while b"\r\n\r\n" not in found or len(found.partition(b"\r\n\r\n")[2]) < length_of(found):
        some = wire.recv(1 << 16)
        assert some, found
        found += some
    return found


def length_of(said):
    """What an answer says of its body."""
    return int(said.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)


def heard(wire):
    """Until the end."""
    found = b""
    with suppress(ConnectionResetError):
        while some := wire.recv(1 << 16):
            found += some
    return found


@contextmanager
def front(*, within: Limits, tls: Tls | None = None, kind: type[Application] = Application) -> Iterator[Front]:
    """Start it with an application of this kind, and stop it as a signal would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    door = ListenAddress("main", "127.0.0.1", port, tls)
    ready, made, failed = threading.Event(), [], []

    async def run():
        application = kind()
        certificates = Certificates(tls) if tls else None
        one = serve.server(door, application, certificates, within)
        made.append(Front(one, application, asyncio.get_running_loop(), port))
        task = asyncio.create_task(one.serve())
        await asyncio.wait({task, asyncio.create_task(one.opened.wait())}, return_when=asyncio.FIRST_COMPLETED)
        ready.set()
        await task

    def work():
        try:
            uvloop.run(run())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=work, name="front")
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    try:
        if not failed:
            yield made[0]
    finally:
        if made:
            made[0].go()  # whoever waits would keep it open
            made[0].server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        if failed:
            raise failed[0]
