"""Authenticates requests to the cluster's paths by bearer token, from memory where possible.

Used by `cluster` and `agents`.

Invariants:
- Each path needs its scope, and an agent's path a token for its node; no other token, an admin's included, opens it.
- A token that was good before never waits for tokens that were never seen, neither in the database nor at the API
  server.
- What cannot be a token is refused without asking anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from access.actors import Actor
from access.authorization import bearer_token
from access.choices import TokenScope
from gpuplane.listeners import Scope, client_address, header
from gpuplane.listeners.agent_tokens import AgentTokens
from gpuplane.listeners.answers import Header, Refused
from gpuplane.listeners.bounded_dict import Recent
from gpuplane.listeners.reviewed_tokens import ReviewFailed, is_jwt, token_digest
from gpuplane.listeners.threads import Busy, Lane, Lanes
from gpuplane.listeners.unverified_claims import LONGEST

log = structlog.get_logger(__name__)

CHALLENGE: Final[Header] = (b"www-authenticate", b'Bearer realm="gpuplane"')
RETRY: Final[Header] = (b"retry-after", b"2")
MOST_SEEN: Final = 4_096


class UnknownToken(Refused):
    """Nobody's token."""

    def __init__(self) -> None:
        super().__init__(401, "the token is not known, was revoked, or has ended", CHALLENGE)


@dataclass(frozen=True, slots=True)
class Bearer:
    """Checks tokens: `known` from memory (never blocks), `verify` with the database."""

    known: Callable[[str], Actor | None]
    verify: Callable[[str], Actor | None]
    lanes: Lanes
    agents: AgentTokens | None = None
    """Checks tokens of ServiceAccounts, where there is a cluster."""
    _seen: Recent[bytes, None] = field(default_factory=lambda: Recent(MOST_SEEN))
    """Digests of API tokens that were good before."""

    async def actor(self, scope: Scope, *, needed: TokenScope) -> Actor:
        """The caller of a path that needs this scope. Raises Refused."""
        found = await self._api_token(_token(scope))
        if found.scope is not needed:
            raise Refused(403, found.refusal(needed))
        return found

    async def agent(self, scope: Scope, *, node: str) -> Actor:
        """The agent of the node. Raises Refused."""
        token = _token(scope)
        if self.agents and is_jwt(token):
            found = await self._service_account_token(token, self.agents, client_address(scope))
        else:
            found = await self._api_token(token)
        if found.scope is not TokenScope.AGENT or found.node != node:
            log.warning("agent.other_node", actor=found.name, node=node, scope=found.scope.value)
            raise Refused(403, found.refusal(TokenScope.AGENT, node=node))
        return found

    async def _api_token(self, token: str) -> Actor:
        known = self.known(token)
        if known is not None:
            return known
        digest = token_digest(token)
        lane = self.lanes.tokens if digest in self._seen else self.lanes.new_tokens
        found = await _in_lane(lane, self.verify, token)
        self._seen.pop(digest, None)
        if found is None:
            raise UnknownToken
        self._seen[digest] = None
        return found

    async def _service_account_token(self, token: str, agents: AgentTokens, address: str) -> Actor:
        known = agents.known(token)
        if known is not None:
            return known
        if agents.refused(token):
            raise UnknownToken
        seen = agents.seen(token)
        if not seen and not agents.failures.take(address):
            raise Refused(429, "too many requests with unknown tokens; retry later", RETRY)
        is_refused = False
        try:
            found = await _in_lane(self.lanes.reviews if seen else self.lanes.new_reviews, agents.verify, token)
            is_refused = found is None
        except ReviewFailed as error:
            raise Refused(503, "the API server did not review the token; retry later", RETRY) from error
        finally:
            if not seen and not is_refused:
                agents.failures.give_back(address)
        if found is None:
            raise UnknownToken
        return found


async def _in_lane(lane: Lane, verify: Callable[[str], Actor | None], token: str) -> Actor | None:
    try:
        return await lane.run(verify, token)
    except Busy as busy:
        raise Refused(503, "too many tokens are being checked; retry later", RETRY) from busy


def _token(scope: Scope) -> str:
    """The bearer token of the request. Raises Refused."""
    token = (bearer_token(header(scope, b"authorization")) or b"").decode("latin-1")
    if len(token) > LONGEST:
        raise UnknownToken
    if not token:
        raise Refused(401, "this path needs the header Authorization: Bearer <token>", CHALLENGE)
    return token
