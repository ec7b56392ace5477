"""Lets node agents in: `WS /ws/agents/<node>/` and `POST /api/v1/agents/<node>/samples/`.

Called by `gpuplane.asgi`. Checks the token and the node's name, then hands over to `nodes.live.ingest`,
which owns the frames. Only the main door leads here. Kept true: a session by a token of ours ends with the token.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from access.actors import Actor
from access.sockets import SOCKETS, Open
from gpuplane.doors import Receive, Scope, Send
from gpuplane.doors.answers import refuse_socket, send_problem
from gpuplane.doors.bearer import Bearer, Refused
from gpuplane.doors.bodies import (
    CLOSE,
    COME_AGAIN,
    NO_ROOM,
    BodyTooLarge,
    ClientGone,
    Held,
    NoRoom,
    read_body,
    too_large,
)
from gpuplane.doors.body_limits import Bound
from nodes.live.pace import RETRY_AFTER_SECONDS

REFUSED_SECONDS = 0.25
"""How long a post that is refused waits for its answer: one that is sent again at once would cost as much as one that is taken."""

SOCKET = re.compile(r"/ws/agents/([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)/")
SAMPLES = re.compile(r"/api/v1/agents/([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)/samples/")

SIGN_IN_AGAIN: Final = 1012
"""Close code: connect again, with the token of now."""

SESSIONS_MOST: Final = 4
"""Sockets of one node's agent at one time in a process: its own, and those of before that have not ended yet."""

log = structlog.get_logger(__name__)


class Ingest(Protocol):
    """What `nodes.live.ingest` offers."""

    async def agent_socket(self, scope: Scope, receive: Receive, send: Send, *, node: str, actor: Actor) -> None:
        """Serve one agent's socket, not accepted yet."""

    async def answer_frame(self, body: bytes, *, node: str, actor: Actor) -> tuple[int, bytes]:
        """Status and frame that answer one frame that came by POST."""


class Sessions:
    """The sockets of each node. Where there is one too many the oldest ends, so whoever has a token takes no more than its node's places."""

    def __init__(self, *, most: int = SESSIONS_MOST) -> None:
        self._most = most
        self._of: dict[str, list[Open]] = {}

    def opened(self, entry: Open) -> None:
        """Note it."""
        sessions = self._of.setdefault(entry.node, [])
        sessions.append(entry)
        if len(sessions) > self._most:
            sessions.pop(0).cut(f"the agent of {entry.node} has begun {self._most} times since")

    def closed(self, entry: Open) -> None:
        """It is over."""
        sessions = self._of.get(entry.node, [])
        if entry in sessions:
            sessions.remove(entry)
        if not sessions:
            self._of.pop(entry.node, None)


@dataclass(frozen=True, slots=True)
class Agents:
    """The two endpoints."""

    bearer: Bearer
    ingest: Ingest
    bound: Bound
    sessions: Sessions = field(default_factory=Sessions)

    async def socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """WebSocket scope whose path begins with /ws/agents/."""
        named = SOCKET.fullmatch(scope["path"])
        if named is None:
            await receive()
            await refuse_socket(scope, send, 404, "there is no such path")
            return
        try:
            actor = await self.bearer.agent(scope, node=named[1])
        except Refused as refused:
            await receive()
            await refuse_socket(scope, send, refused.status, refused.detail, refused.headers)
            return
        await self._session(scope, receive, send, node=named[1], actor=actor)

    async def _session(self, scope: Scope, receive: Receive, send: Send, *, node: str, actor: Actor) -> None:
        """The session, which ends with its token, or with too many of its node: by a cancellation, so that frames cost nothing for it."""
        task = asyncio.current_task()
        if task is None:  # an ASGI application always runs in one
            raise RuntimeError("no task")
        entry = Open(account=actor.name, token=actor.token, node=node, end=task.cancel)
        if actor.token:
            SOCKETS.opened(entry)
        self.sessions.opened(entry)
        try:
            await self.ingest.agent_socket(scope, receive, send, node=node, actor=actor)
        except asyncio.CancelledError:
            if not entry.ended or task.uncancel():
                raise
            try:
                await send({"type": "websocket.close", "code": SIGN_IN_AGAIN, "reason": entry.why})
            except (OSError, RuntimeError):  # the peer left first; uvicorn says so in either way
                log.debug("agent.left_first", node=node)
        finally:
            SOCKETS.closed(entry)
            self.sessions.closed(entry)

    async def samples(self, scope: Scope, receive: Receive, send: Send) -> None:
        """HTTP scope whose path matches SAMPLES."""
        named = SAMPLES.fullmatch(scope["path"])
        if named is None:
            await send_problem(send, 404, "there is no such path")
            return
        if scope["method"] != "POST":
            await send_problem(send, 405, "only POST is understood here", [(b"allow", b"POST")])
            return
        try:
            actor = await self.bearer.agent(scope, node=named[1])
            with Held(self.bound.budget) as held:
                body = await read_body(scope, receive, limit=self.bound.limit_bytes, held=held)
                status, answer = await self.ingest.answer_frame(body, node=named[1], actor=actor)
        except Refused as refused:
            await asyncio.sleep(REFUSED_SECONDS)
            await send_problem(send, refused.status, refused.detail, refused.headers)
            return
        except BodyTooLarge:
            await send_problem(send, 413, too_large(self.bound.limit_bytes), [CLOSE])
            return
        except NoRoom:
            await send_problem(send, 503, NO_ROOM, [COME_AGAIN, CLOSE])
            return
        except ClientGone:
            return
        headers = [(b"content-type", b"application/msgpack"), (b"content-length", b"%d" % len(answer))]
        if status == 429:
            await asyncio.sleep(REFUSED_SECONDS)
            headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
