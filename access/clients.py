"""Whether the client of a request is still there, for views that work for it at length.

`gpuplane.doors.departures` puts a `Client` into the scope of every request to Django and tells it when the connection is closed; a view asks
`client_of(request)`. Django itself cancels asynchronous views only: the thread of any other view works on for nobody. Kept true: once
`telling` is left, its callback is not called any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

CLIENT: Final = "gpuplane.client"
"""Key in an ASGI scope."""


class Client:
    """Who waits for an answer. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._gone = False

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more."""
        return self._gone

    def leave(self) -> None:
        """Note that it has gone, and tell whoever wanted to know. Callbacks must not block: this is called on the event loop."""
        with self._lock:
            self._gone = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back when it goes, at once if it has gone, from whichever thread notes it."""
        with self._lock:
            self._callbacks.append(callback)
            if self._gone:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


def client_of(request: Any) -> Client:
    """The client of a request, Django's or REST framework's; without a server one that never goes."""
    scope = getattr(request, "scope", None) or {}
    client = scope.get(CLIENT)
    return client if isinstance(client, Client) else Client()
