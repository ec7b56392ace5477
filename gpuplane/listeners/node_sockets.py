"""WebSockets of the programs on nodes, agents and runners: each serves one node, and ends with its token.

Used by `agents` and `runners`. Invariants: a session ends with the API token that opened it; a node has SESSIONS_MOST
sockets of each kind in a process at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol

import structlog

from access.actors import Actor
from access.sockets import SOCKETS, OpenSocket
from gpuplane.listeners import Receive, Scope, Send

SIGN_IN_AGAIN: Final = 1012
"""Close code: connect again, with the current token."""

SESSIONS_MOST: Final = 4
"""Sockets of one node's program at one time in a process: its current one, and earlier ones that have not ended yet."""

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
            sessions.pop(0).cut(f"this program of {entry.node} has begun {SESSIONS_MOST} times since")

    def closed(self, entry: OpenSocket) -> None:
        """Remove a socket, if it is still there."""
        sessions = self._of.get(entry.node, [])
        if entry in sessions:
            sessions.remove(entry)
        if not sessions:
            self._of.pop(entry.node, None)


class Endpoint(Protocol):
    """What serves a socket once its caller is known."""

    def __call__(self, scope: Scope, receive: Receive, send: Send, *, node: str, actor: Actor) -> Awaitable[None]:
        """Serve until the client leaves."""


async def serve_node(
    endpoint: Endpoint, sessions: Sessions, scope: Scope, receive: Receive, send: Send, *, node: str, actor: Actor
) -> None:
    """Serve until the client leaves, the token ends or the node has too many sessions, by cancelling the task."""
    task = asyncio.current_task()
    if task is None:  # an ASGI application always runs in one
        raise RuntimeError("no task")
    entry = OpenSocket(account=actor.name, token=actor.token, node=node, end=task.cancel)
    if actor.token:
        SOCKETS.opened(entry)
    sessions.opened(entry)
    try:
        await endpoint(scope, receive, send, node=node, actor=actor)
    except asyncio.CancelledError:
        if not entry.ended or task.uncancel():
            raise
        try:
            await send({"type": "websocket.close", "code": SIGN_IN_AGAIN, "reason": entry.why})
        except (OSError, RuntimeError):  # the peer left first; uvicorn raises either
            log.debug("node_socket.left_first", node=node)
    finally:
        SOCKETS.closed(entry)
        sessions.closed(entry)
