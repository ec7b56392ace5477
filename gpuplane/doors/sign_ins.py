"""A gate in front of what the sign-in page is sent, so that guessing takes neither the process's threads nor its interpreter lock.

Put before Django by `gpuplane.asgi` for POST of the sign-in page. Invariants: a body is read whole, up to LONGEST_BYTES, before its
turn, so a slow sender holds none; AT_ONCE attempts are worked on at a time, WAITING_MOST wait, each at most WAIT_SECONDS; a refusal
for too many failures is answered after REFUSAL_SECONDS, which holds no thread and no turn.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gpuplane.doors import App, Message, Receive, Scope, Send
from gpuplane.doors.answers import send_problem

AT_ONCE: Final = 2
WAITING_MOST: Final = 64
WAIT_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 1.0
LONGEST_BYTES: Final = 16 * 1024
_RETRY = ((b"retry-after", b"5"),)


class SignInGate:
    """Lets attempts through to `application`, few at a time."""

    def __init__(self, application: App) -> None:
        self._application = application
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One attempt."""
        body = await _whole(receive)
        if body is None:
            await send_problem(send, 413, f"a sign-in has at most {LONGEST_BYTES} bytes")
            return
        if self._inside >= AT_ONCE + WAITING_MOST:
            await send_problem(send, 503, "too many sign-ins at this moment; try again", _RETRY)
            return
        self._inside += 1
        try:
            answer = await self._answer(scope, body, receive)
        finally:
            self._inside -= 1
        if answer is None:
            await send_problem(send, 503, "too many sign-ins at this moment; try again", _RETRY)
            return
        if answer and answer[0].get("status") == 429:
            await asyncio.sleep(REFUSAL_SECONDS)
        for message in answer:
            await send(message)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive) -> list[Message] | None:
        """The application's messages; None where no turn came in time."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            return None
        answer: list[Message] = []
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def keep(message: Message) -> None:
            answer.append(message)

        try:
            await self._application(scope, again, keep)
        finally:
            self._turns.release()
        return answer


async def _whole(receive: Receive) -> bytes | None:
    """The body; None where it is too long, or the client has left."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += bytes(message.get("body", b""))
        if len(body) > LONGEST_BYTES:
            return None
        if not message.get("more_body", False):
            return body
