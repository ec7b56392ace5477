"""Authenticates agents by the token of their ServiceAccount: asks the API server, and caches its answer for a minute.

Called by `bearer`, `verify` in a thread.

Invariants:
- An agent is known by its ServiceAccount, and speaks only for the node of the pod to which its token is bound.
- The token itself is not kept.
- While the API server is away no new token is accepted; those accepted in the last minute still are.
- The API server is not asked about a token whose unverified claims rule it out, at most once in `REFUSED_SECONDS` about
  a token that it refused, and about tokens never seen before only as often as `failures` allows.
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
from gpuplane.listeners.rate_limits import AddressRateLimit, Rate
from gpuplane.listeners.recent import Recent
from gpuplane.listeners.unverified import LONGEST, why_never
from kube.client import Cluster
from kube.errors import KubeError
from kube.token_reviews import Reviewed, review

FRESH_SECONDS: Final = 60.0
SEEN_SECONDS: Final = 86_400.0
"""How long a token that was good has precedence over those never seen. ServiceAccount tokens of pods live an hour."""
REFUSED_SECONDS: Final = 10.0
MOST_KNOWN: Final = 16_384
SECONDS: Final = 5.0
"""Time-out of a TokenReview: agents try again."""
FAILURES: Final = Rate(burst=32.0, a_second=0.5)
ALL_FAILURES: Final = Rate(burst=512.0, a_second=20.0)
"""TokenReviews that may fail, by address and in all."""

log = structlog.get_logger(__name__)


class ReviewFailed(Exception):
    """The API server does not answer."""


def is_jwt(token: str) -> bool:
    """Whether it has the shape of a ServiceAccount's token: three parts, where API tokens have one."""
    return token.count(".") == 2 and len(token) <= LONGEST


def token_digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class AgentTokens:
    """`cluster`: None without one. `account`: `system:serviceaccount:<namespace>:<name>` of agents.

    `clock`: monotonic seconds; `wall`: seconds since 1970.
    """

    cluster: Callable[[], Cluster | None]
    account: str
    audience: str
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    failures: AddressRateLimit = field(init=False)
    """Of reviews of tokens never seen before. Each is counted when it begins, and given back if the token is good."""
    # Apart, so that guesses push no good token out.
    _good: Recent[bytes, tuple[float, Actor]] = field(default_factory=lambda: Recent(MOST_KNOWN))
    _bad: Recent[bytes, float] = field(default_factory=lambda: Recent(MOST_KNOWN))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.failures = AddressRateLimit(FAILURES, ALL_FAILURES, clock=self.clock)

    def known(self, token: str) -> Actor | None:
        """The agent, from memory alone."""
        entry = self._good.get(token_digest(token))
        return entry[1] if entry is not None and entry[0] > self.clock() else None

    def seen(self, token: str) -> bool:
        """Whether it was good in the last SEEN_SECONDS."""
        entry = self._good.get(token_digest(token))
        return entry is not None and entry[0] + SEEN_SECONDS > self.clock()

    def refused(self, token: str) -> bool:
        """Whether it is bad, by its unverified claims or because the API server refused it a moment ago."""
        if self._bad.get(token_digest(token), 0.0) > self.clock():
            return True
        why = why_never(token, account=self.account, audience=self.audience, now=self.wall())
        if why:
            log.info("agent.token_never", why=why)
        return bool(why)

    def verify(self, token: str) -> Actor | None:
        """The agent, None for a token that may not speak for a node.

        Asks the API server at most once a minute a token. Raises ReviewFailed.
        """
        known = self.known(token)
        if known is not None:
            return known
        digest = token_digest(token)
        cluster = self.cluster()
        if self._bad.get(digest, 0.0) > self.clock() or cluster is None:
            return None
        try:
            reviewed = review(cluster, token=token, audience=self.audience, timeout=SECONDS)
        except KubeError as error:
            raise ReviewFailed(str(error)) from error
        actor = self._actor(reviewed)
        with self._lock:
            if actor is None:
                self._good.pop(digest, None)
                self._bad[digest] = self.clock() + REFUSED_SECONDS
            else:
                self._good[digest] = self.clock() + FRESH_SECONDS, actor
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
