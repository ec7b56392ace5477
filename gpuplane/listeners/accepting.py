"""Accepts the connections of one listener: counts each first, then makes its TLS handshake within HANDSHAKE_SECONDS.

Used by `gpuplane.serve` in place of asyncio's own server, which reports a connection only after its handshake, and
accepts without a limit. Invariants: a connection that gets no slot is closed without a byte read from it; the listener
goes on whatever happens to one connection; after `close` nothing is accepted any more and no handshake goes on.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial

from gpuplane.listeners.connections import Connections, ConnectionSlot
from gpuplane.listeners.limits import HANDSHAKE_SECONDS, UNREAD_SECONDS

AT_ONCE = 64
"""Connections that are accepted before others are served again."""
NO_FILES_SECONDS = 1.0
"""How long nothing is accepted when the system has no room for another connection."""
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close at once, so that refused connections do not stay in TIME_WAIT."""

Factory = Callable[[ConnectionSlot], asyncio.Protocol]


async def listening_sockets(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """Sockets that listen at every address of the host. Raises OSError."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(backlog)
    except OSError:
        for one in found:
            one.close()
        raise
    return found


class Accepting:
    """Accepts connections from its creation on. `close` and `wait_closed` as those of an asyncio server."""

    def __init__(
        self,
        sockets: list[socket.socket],
        *,
        connections: Connections,
        factory: Factory,
        context: ssl.SSLContext | None,
    ) -> None:
        """`factory` makes the protocol of a connection that has a slot."""
        self.sockets = tuple(sockets)
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._factory = factory
        self._context = context
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False
        for one in self.sockets:
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Stop accepting, and cancel handshakes."""
        self._closed = True
        for one in self.sockets:
            self._loop.remove_reader(one)
            one.close()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake goes on."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(listening)
                    return
                continue  # it was gone before it was accepted
            accepted.setblocking(False)
            slot = self._connections.take(address[0])
            if slot is None:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                accepted.close()
                continue
            task = self._loop.create_task(self._open(accepted, slot))
            slot.end = partial(_cancel, task, accepted)
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        """Make the connection; from `connection_made` on the protocol has the slot."""
        factory = partial(self._factory, slot)
        try:
            if self._context is None:
                await self._loop.connect_accepted_socket(factory, accepted)
                return
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._loop.connect_accepted_socket(
                    factory, accepted, ssl=self._context, ssl_shutdown_timeout=UNREAD_SECONDS
                )
        except (OSError, asyncio.CancelledError) as error:  # cancelled by `close`, or to make room
            slot.refused("handshake-time" if isinstance(error, TimeoutError) else "handshake")
            slot.release()
            accepted.close()

    def _pause(self, listening: socket.socket) -> None:
        """Stop accepting for a while: the system has no room, and every try would fail at once."""
        self._connections.refused("no-files", "")
        self._loop.remove_reader(listening)

        def resume() -> None:
            if not self._closed:
                self._loop.add_reader(listening, self._accept, listening)

        self._loop.call_later(NO_FILES_SECONDS, resume)


def _cancel(task: asyncio.Task[None], accepted: socket.socket) -> None:
    """End a connection that is being made. The task may not have begun: then nothing else closes the socket."""
    task.cancel()
    accepted.close()
