"""Who knocks: the bearer token of a request on the cluster's paths, checked from memory where possible.

Used by `cluster` and `agents`. Kept true: each path asks for the scope of its own, and an agent's for its node; no other token, an admin's
included, opens it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from access.actors import Actor
from access.choices import TokenScope
from gpuplane.doors import Scope
from gpuplane.doors.agent_tokens import AgentTokens, ReviewAway, looks_signed
from gpuplane.doors.threads import in_thread

log = structlog.get_logger(__name__)

CHALLENGE = (b"www-authenticate", b'Bearer realm="gpuplane"')


class Refused(Exception):
    """401, 403 or 503 with its sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes with the status."""
        return [CHALLENGE] if self.status == 401 else []


@dataclass(frozen=True, slots=True)
class Bearer:
    """Checks tokens: `known` from memory (never blocks), `verify` with the database."""

    known: Callable[[str], Actor | None]
    verify: Callable[[str], Actor | None]
    executor: Executor
    agents: AgentTokens | None = None
    """Who signs in by a ServiceAccount, where there is a cluster."""
    reviewers: Executor | None = None
    """Threads that ask the API server about them."""

    async def actor(self, scope: Scope, *, needed: TokenScope) -> Actor:
        """Who asks on a path of the cluster's that this scope opens. Raises Refused."""
        found = await self._known(_stated(scope))
        if found.scope is not needed:
            raise Refused(403, found.refusal(needed))
        return found

    async def agent(self, scope: Scope, *, node: str) -> Actor:
        """Who speaks for the node: its agent. Raises Refused."""
        token = _stated(scope)
        found = await self._signed(token, self.agents) if self.agents and looks_signed(token) else None
        if found is None:
            found = await self._known(token)
        if found.scope is not TokenScope.AGENT or found.node != node:
            log.warning("agent.other_node", actor=found.name, node=node, scope=found.scope.value)
            raise Refused(403, found.refusal(TokenScope.AGENT, node=node))
        return found

    async def _known(self, token: str) -> Actor:
        found = self.known(token)
        if found is None:
            found = await in_thread(self.executor, self.verify, token)
        if found is None:
            raise Refused(401, "the token is not known, was revoked, or has ended")
        return found

    async def _signed(self, token: str, agents: AgentTokens) -> Actor | None:
        found = agents.known(token)
        if found is not None:
            return found
        try:
            return await in_thread(self.reviewers or self.executor, agents.verify, token)
        except ReviewAway as away:
            raise Refused(503, "the API server does not say whose token this is; come again") from away


def _stated(scope: Scope) -> str:
    token = _token(scope)
    if not token:
        raise Refused(401, "this path needs the header Authorization: Bearer <token>")
    return token


def _token(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return str(token.strip().decode("latin-1"))
    return ""
