"""Ends connections whose peer does not read what is sent to it. Shared by `bounded_http` and `bounded_sockets`."""

from __future__ import annotations

import asyncio

from gpuplane.listeners.connections import ConnectionSlot
from gpuplane.listeners.limits import UNREAD_BYTES, UNREAD_SECONDS


class ReaderTimeout(asyncio.Protocol):
    """A mixin for uvicorn's protocols: the peer reads UNREAD_BYTES in UNREAD_SECONDS while more waits for it."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _slot: ConnectionSlot
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is closed."""
        self._stop_unread_timer()
        self._slot.release()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called when the write buffer is full."""
        super().pause_writing()
        self._start_unread_timer()

    def resume_writing(self) -> None:
        """Called when the write buffer has room again."""
        self._stop_unread_timer()
        super().resume_writing()

    def _start_unread_timer(self) -> None:
        size = self.transport.get_write_buffer_size()
        if size and self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._check_reader, size)

    def _check_reader(self, before: int) -> None:
        self._unread_timer = None
        if before - self.transport.get_write_buffer_size() >= UNREAD_BYTES:
            self._start_unread_timer()
        else:
            self._slot.refused("unread")
            self._end()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _end(self) -> None:
        """Close without sending anything more."""
        self.transport.abort()
