"""Notes in front of Django that a client has closed its connection (`access.clients`).

Kept true: nothing is read from the connection that Django does not ask for. It does while a view runs, and gets the end of the connection
as a message; this passes that on to the view's thread, which Django cannot stop.
"""

from __future__ import annotations

from access.clients import CLIENT, Client
from gpuplane.doors import App, Message, Receive, Scope, Send


def watched(app: App) -> App:
    """The application, its requests with a `Client` in their scope."""

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        client = Client()

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                client.leave()
            return message

        await app({**scope, CLIENT: client}, heard, send)

    return watching
