"""The browser's end of a socket, without a server (the package of channels' own needs daphne)."""

from __future__ import annotations

from typing import Any

from asgiref.testing import ApplicationCommunicator


class Socket(ApplicationCommunicator):
    """One socket of `user`; `scope`: more of its scope."""

    def __init__(self, application: Any, user: Any, **scope: Any) -> None:
        self.scope = {"type": "websocket", "path": "/ws/", "headers": [], "user": user, **scope}
        super().__init__(application, self.scope)

    async def connect(self) -> None:
        await self.send_input({"type": "websocket.connect"})
        assert await self.receive_output(5) == {"type": "websocket.accept", "subprotocol": None}

    async def say(self, **message: Any) -> None:
        await self.send_input({"type": "websocket.receive", **message})

    async def hear(self) -> Any:
        """The next message: bytes or text."""
        message = await self.receive_output(5)
        assert message["type"] == "websocket.send"
        return message.get("bytes") or message["text"]

    async def closed(self) -> int:
        """The code with which the server closes, whatever it says before. The browser is gone then."""
        while (message := await self.receive_output(5))["type"] != "websocket.close":
            pass
        await self.leave()
        return int(message["code"])

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(5)
