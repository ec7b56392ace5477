"""Who knocks: the bearer token of a request on the cluster's paths, checked from memory where possible.

Used by `cluster` and `agents`.

Invariants:
- Each path asks for the scope of its own, and an agent's for its node; no other token, an admin's included, opens it.
- A credential that was good before never waits for those that were never seen, neither in the database nor at the API server.
- What cannot be a credential is refused without asking anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from access.actors import Actor
from access.choices import TokenScope
from gpuplane.doors import Scope
from gpuplane.doors.agent_tokens import AgentTokens, ReviewAway, looks_signed
from gpuplane.doors.threads import Busy, Lane, Lanes

log = structlog.get_logger(__name__)

CHALLENGE = (b"www-authenticate", b'Bearer realm="gpuplane"')
LONGEST: Final = 8_192
"""Characters of any token."""
MOST_MET: Final = 4_096


class Refused(Exception):
    """401, 403, 429 or 503 with its sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes with the status."""
        if self.status in {429, 503}:
            return [(b"retry-after", b"2")]
        return [CHALLENGE] if self.status == 401 else []


@dataclass(frozen=True, slots=True)
class Bearer:
    """Checks tokens: `known` from memory (never blocks), `verify` with the database."""

    known: Callable[[str], Actor | None]
    verify: Callable[[str], Actor | None]
    lanes: Lanes
    agents: AgentTokens | None = None
    """Who signs in by a ServiceAccount, where there is a cluster."""
    _met: dict[bytes, None] = field(default_factory=dict)
    """Digests of tokens of ours that were good before, the latest last."""

    async def actor(self, scope: Scope, *, needed: TokenScope) -> Actor:
        """Who asks on a path of the cluster's that this scope opens. Raises Refused."""
        found = await self._known(_stated(scope))
        if found.scope is not needed:
            raise Refused(403, found.refusal(needed))
        return found

    async def agent(self, scope: Scope, *, node: str) -> Actor:
        """Who speaks for the node: its agent. Raises Refused."""
        token = _stated(scope)
        if self.agents and looks_signed(token):
            found = await self._signed(token, self.agents, _address(scope))
        else:
            found = await self._known(token)
        if found.scope is not TokenScope.AGENT or found.node != node:
            log.warning("agent.other_node", actor=found.name, node=node, scope=found.scope.value)
            raise Refused(403, found.refusal(TokenScope.AGENT, node=node))
        return found

    async def _known(self, token: str) -> Actor:
        found = self.known(token)
        if found is not None:
            return found
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        lane = self.lanes.tokens if digest in self._met else self.lanes.new_tokens
        found = await _turned(lane, self.verify, token)
        self._met.pop(digest, None)
        if found is None:
            raise Refused(401, NOT_KNOWN)
        while len(self._met) >= MOST_MET:
            del self._met[next(iter(self._met))]
        self._met[digest] = None
        return found

    async def _signed(self, token: str, agents: AgentTokens, address: str) -> Actor:
        found = agents.known(token)
        if found is not None:
            return found
        if agents.refused(token):
            raise Refused(401, NOT_KNOWN)
        met = agents.met(token)
        if not met and not agents.may_ask(address):
            raise Refused(429, "too many tokens that are nobody's; come again later")
        try:
            found = await _turned(self.lanes.reviews if met else self.lanes.new_reviews, agents.verify, token)
        except ReviewAway as away:
            raise Refused(503, "the API server does not say whose token this is; come again") from away
        if found is None:
            raise Refused(401, NOT_KNOWN)
        if not met:
            agents.was_good(address)
        return found


NOT_KNOWN: Final = "the token is not known, was revoked, or has ended"


async def _turned(lane: Lane, verify: Callable[[str], Actor | None], token: str) -> Actor | None:
    try:
        return await lane.run(verify, token)
    except Busy as busy:
        raise Refused(503, "too many tokens are being checked; come again") from busy


def _stated(scope: Scope) -> str:
    token = _token(scope)
    if len(token) > LONGEST:
        raise Refused(401, NOT_KNOWN)
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


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
