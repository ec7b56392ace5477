"""Whether the client of a request is still connected, for views that run long.

`gpuplane.listeners.disconnects` puts a `Client` into the scope of every request to Django and reports the end of its
connection: Django itself cancels asynchronous views only. Invariants: once `on_disconnect` is left, its callback is not
called any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

CLIENT: Final = "gpuplane.client"
"""Key in an ASGI scope."""


class Client:
    """The client of one request. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.gone = False

    def disconnect(self) -> None:
        """Note the end of the connection and run the callbacks, which must not block: this runs on the event loop."""
        with self._lock:
            self.gone = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def on_disconnect(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back when the client disconnects, at once if it has, from any thread."""
        with self._lock:
            self._callbacks.append(callback)
            if self.gone:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


def client_of(request: Any) -> Client:
    """The client of a request, Django's or REST framework's; without a server one that never disconnects."""
    scope = getattr(request, "scope", None) or {}
    client = scope.get(CLIENT)
    return client if isinstance(client, Client) else Client()
