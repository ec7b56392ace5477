"""Authenticates agents by the token of their ServiceAccount.

Called by `bearer`, `verify` in a thread. Invariants: an agent is known by its ServiceAccount, and speaks only for the
node of the pod to which its token is bound; and those of `reviewed_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from typing_extensions import override

from access.actors import Actor
from access.choices import Role, TokenScope
from gpuplane.listeners.reviewed_tokens import ReviewedTokens
from gpuplane.listeners.unverified_claims import why_never
from kube.token_reviews import Reviewed

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class AgentTokens(ReviewedTokens[Actor]):
    """`account`: `system:serviceaccount:<namespace>:<name>` of agents."""

    account: str

    @override
    def why_never(self, token: str) -> str:
        return why_never(token, account=self.account, audience=self.audience, now=self.wall())

    @override
    def accepted(self, reviewed: Reviewed, digest: bytes) -> Actor | None:
        if reviewed.username != self.account or not reviewed.node:
            log.warning("agent.token_refused", user=reviewed.username, node=reviewed.node or "bound to no node")
            return None
        log.info("agent.token_reviewed", user=reviewed.username, node=reviewed.node)
        return Actor(
            name=f"agent@{reviewed.node}",
            role=Role.VIEWER,
            service=True,
            node=reviewed.node,
            scope=TokenScope.AGENT,
        )
