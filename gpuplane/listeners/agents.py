"""Authenticates node agents: `WS /ws/agents/<node>/` and `POST /api/v1/agents/<node>/samples/`.

Called by `gpuplane.application`. Checks the token and the node's name, then hands over to `nodes.live.ingest`, which
handles the frames. Only the main listener permits these paths.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final

from gpuplane.listeners import Receive, Scope, Send
from gpuplane.listeners.answers import Refused, refuse_socket, send_problem, send_response
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.bodies import BudgetHold, ClientGone, read_body
from gpuplane.listeners.body_limits import Bound
from gpuplane.listeners.node_sockets import Sessions, serve_node
from nodes.live import ingest
from nodes.live.rate_limit import RETRY_AFTER_SECONDS

REFUSED_SECONDS = 0.25
"""How long a refusal is delayed, so that repeating the request at once costs less than answering it."""

NODE: Final = r"([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)"
SOCKET: Final = re.compile(f"/ws/agents/{NODE}/")
SAMPLES: Final = re.compile(f"/api/v1/agents/{NODE}/samples/")


@dataclass(frozen=True, slots=True)
class Agents:
    """The two endpoints."""

    bearer: Bearer
    bound: Bound
    sessions: Sessions = field(default_factory=Sessions)

    async def socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket scope whose path begins with /ws/agents/."""
        try:
            node = node_in(SOCKET, scope)
            actor = await self.bearer.agent(scope, node=node)
        except Refused as refused:
            await receive()
            await refuse_socket(scope, send, refused.status, refused.detail, refused.headers)
            return
        await serve_node(ingest.agent_socket, self.sessions, scope, receive, send, node=node, actor=actor)

    async def samples(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP scope whose path begins with /api/v1/agents/."""
        try:
            node = node_in(SAMPLES, scope)
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


def node_in(pattern: re.Pattern[str], scope: Scope) -> str:
    """The node named in the path. Raises Refused, also for HTTP methods but POST."""
    found = pattern.fullmatch(scope["path"])
    if found is None:
        raise Refused(404, "there is no such path")
    if scope.get("method", "POST") != "POST":
        raise Refused(405, "only POST is understood here", (b"allow", b"POST"))
    return found[1]
