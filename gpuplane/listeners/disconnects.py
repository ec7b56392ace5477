"""Notes in front of Django that a client has closed its connection (`access.clients`).

Invariants: nothing is read from the connection that Django does not ask for. Django waits for the end of the connection
while a view runs, but cannot stop the view's thread; this passes the end on to that thread.
"""

from __future__ import annotations

from access.clients import CLIENT, Client
from gpuplane.listeners import App, Message, Receive, Scope, Send


def watched(app: App) -> App:
    """The application, with a `Client` in the scope of each request."""

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        client = Client()

        async def noting() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                client.disconnect()
            return message

        await app({**scope, CLIENT: client}, noting, send)

    return watching
