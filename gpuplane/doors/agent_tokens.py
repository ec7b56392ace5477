"""Agents that sign in by the token of their ServiceAccount: whom the API server says they are, remembered for a minute.

Called by `bearer` in a thread. Kept true: an agent is known by its ServiceAccount, and speaks for the node of the pod to which its token is bound, and for no
other; the token itself is not kept; while the API server is away nobody new is let in, and who was let in lately still is.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from access.actors import Actor
from access.choices import Role, TokenScope
from kube.client import Cluster
from kube.errors import KubeError
from kube.token_reviews import Reviewed, review

FRESH_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
MOST_KNOWN: Final = 16_384
LONGEST: Final = 8_192
SECONDS: Final = 5.0
"""For the API server's answer: an agent comes again."""

log = structlog.get_logger(__name__)


class ReviewAway(Exception):
    """The API server does not answer."""


def looks_signed(token: str) -> bool:
    """Whether it may be a ServiceAccount's: a JWT has three parts, tokens of ours have one."""
    return token.count(".") == 2 and len(token) <= LONGEST


@dataclass(slots=True)
class AgentTokens:
    """`cluster`: None without one. `account`: `system:serviceaccount:<namespace>:<name>` of agents. `clock`: seconds, any zero."""

    cluster: Callable[[], Cluster | None]
    account: str
    audience: str
    clock: Callable[[], float] = time.monotonic
    _known: dict[bytes, tuple[float, Actor | None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def known(self, token: str) -> Actor | None:
        """Who it is, from memory alone."""
        entry = self._known.get(_digest(token))
        return entry[1] if entry is not None and entry[0] > self.clock() else None

    def verify(self, token: str) -> Actor | None:
        """Who it is, None for nobody who may speak for a node. Asks the API server at most once a minute a token. Raises ReviewAway."""
        digest = _digest(token)
        entry = self._known.get(digest)
        if entry is not None and entry[0] > self.clock():
            return entry[1]
        cluster = self.cluster()
        if cluster is None:
            return None
        try:
            reviewed = review(cluster, token=token, audience=self.audience, timeout=SECONDS)
        except KubeError as error:
            raise ReviewAway(str(error)) from error
        actor = self._actor(reviewed)
        self._remember(digest, actor)
        return actor

    def _actor(self, reviewed: Reviewed | None) -> Actor | None:
        if reviewed is None:
            return None
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

    def _remember(self, digest: bytes, actor: Actor | None) -> None:
        until = self.clock() + (REFUSED_SECONDS if actor is None else FRESH_SECONDS)
        with self._lock:
            self._known.pop(digest, None)
            while len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = (until, actor)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
