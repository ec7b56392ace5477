"""Authenticates node agents: `WS /ws/agents/<node>/` and `POST /api/v1/agents/<node>/samples/`.

Called by `gpuplane.application`. Checks the token and the node's name, then hands over to `nodes.live.ingest`, which
handles the frames. Only the main listener permits these paths. Invariants: a session ends with the API token that
opened it.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final

import structlog

from access.actors import Actor
from access.sockets import SOCKETS, OpenSocket
from gpuplane.listeners import Receive, Scope, Send
from gpuplane.listeners.answers import Refused, refuse_socket, send_problem, send_response
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.bodies import BudgetHold, ClientGone, read_body
from gpuplane.listeners.body_limits import Bound
from nodes.live import ingest
from nodes.live.rate_limit import RETRY_AFTER_SECONDS

REFUSED_SECONDS = 0.25
"""How long a refusal is delayed, so that repeating the request at once costs less than answering it."""

_NODE: Final = r"([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)"
SOCKET: Final = re.compile(f"/ws/agents/{_NODE}/")
SAMPLES: Final = re.compile(f"/api/v1/agents/{_NODE}/samples/")

SIGN_IN_AGAIN: Final = 1012
"""Close code: connect again, with the current token."""

SESSIONS_MOST: Final = 4
"""Sockets of one node's agent at one time in a process: its current one, and earlier ones that have not ended yet."""

log = structlog.get_logger(__name__)


class Sessions:
    """The sockets of each node, SESSIONS_MOST at most: one more ends the node's oldest."""

    def __init__(self) -> None:
        self._of: dict[str, list[OpenSocket]] = {}

    def opened(self, entry: OpenSocket) -> None:
        """Add a socket."""
        sessions = self._of.setdefault(entry.node, [])
        sessions.append(entry)
        if len(sessions) > SESSIONS_MOST:
            sessions.pop(0).cut(f"the agent of {entry.node} has begun {SESSIONS_MOST} times since")

    def closed(self, entry: OpenSocket) -> None:
        """Remove a socket, if it is still there."""
        sessions = self._of.get(entry.node, [])
        if entry in sessions:
            sessions.remove(entry)
        if not sessions:
            self._of.pop(entry.node, None)


@dataclass(frozen=True, slots=True)
class Agents:
    """The two endpoints."""

    bearer: Bearer
    bound: Bound
    sessions: Sessions = field(default_factory=Sessions)

    async def socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket scope whose path begins with /ws/agents/."""
        try:
            node = _node(SOCKET, scope)
            actor = await self.bearer.agent(scope, node=node)
        except Refused as refused:
            await receive()
            await refuse_socket(scope, send, refused.status, refused.detail, refused.headers)
            return
        await self._session(scope, receive, send, node=node, actor=actor)

    async def _session(self, scope: Scope, receive: Receive, send: Send, *, node: str, actor: Actor) -> None:
        """Serve until the client leaves, the token ends or the node has too many sessions, by cancelling the task."""
        task = asyncio.current_task()
        if task is None:  # an ASGI application always runs in one
            raise RuntimeError("no task")
        entry = OpenSocket(account=actor.name, token=actor.token, node=node, end=task.cancel)
        if actor.token:
            SOCKETS.opened(entry)
        self.sessions.opened(entry)
        try:
            await ingest.agent_socket(scope, receive, send, node=node, actor=actor)
        except asyncio.CancelledError:
            if not entry.ended or task.uncancel():
                raise
            try:
                await send({"type": "websocket.close", "code": SIGN_IN_AGAIN, "reason": entry.why})
            except (OSError, RuntimeError):  # the peer left first; uvicorn raises either
                log.debug("agent.left_first", node=node)
        finally:
            SOCKETS.closed(entry)
            self.sessions.closed(entry)

    async def samples(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP scope whose path begins with /api/v1/agents/."""
        try:
            node = _node(SAMPLES, scope)
            actor = await self.bearer.agent(scope, node=node)
            with BudgetHold(self.bound.budget) as held:
                body = await read_body(scope, receive, limit=self.bound.limit_bytes, held=held)
                status, answer = await ingest.answer_frame(body, node=node, actor=actor)
        except Refused as refused:
            await asyncio.sleep(REFUSED_SECONDS)
            await send_problem(send, refused.status, refused.detail, refused.headers)
            return
        except ClientGone:
            return
        headers = []
        if status == 429:
            await asyncio.sleep(REFUSED_SECONDS)
            headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
        await send_response(send, status, answer, content_type=b"application/msgpack", headers=headers)


def _node(pattern: re.Pattern[str], scope: Scope) -> str:
    """The node named in the path. Raises Refused, also for HTTP methods but POST."""
    found = pattern.fullmatch(scope["path"])
    if found is None:
        raise Refused(404, "there is no such path")
    if scope.get("method", "POST") != "POST":
        raise Refused(405, "only POST is understood here", (b"allow", b"POST"))
    return found[1]
