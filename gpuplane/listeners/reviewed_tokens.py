"""Tokens of Kubernetes ServiceAccounts: asks the API server whose they are, and caches what it says.

Used by `agent_tokens` and by REST (`gpuplane.rest.service_accounts`). Subclasses say which tokens may be good at all
and what a reviewed one is good for. `verify` runs in threads.

Invariants:
- The token itself is not kept.
- While the API server is away no new token is accepted; those accepted in the last `fresh_seconds` still are, until
  they end.
- The API server is not asked about a token whose unverified claims rule it out, at most once in `REFUSED_SECONDS` about
  a token that it refused, and about tokens never seen before only as often as `failures` allows.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog

from gpuplane.listeners.bounded_dict import Recent
from gpuplane.listeners.rate_limits import AddressRateLimit, Rate
from gpuplane.listeners.unverified_claims import LONGEST, ends_at
from kube.client import Cluster
from kube.errors import KubeError
from kube.token_reviews import Reviewed, review

FRESH_SECONDS: Final = 60.0
SEEN_SECONDS: Final = 86_400.0
"""How long a token that was good has precedence over those never seen. ServiceAccount tokens of pods live an hour."""
REFUSED_SECONDS: Final = 10.0
MOST_KNOWN: Final = 16_384
SECONDS: Final = 5.0
"""Time-out of a TokenReview: the caller tries again."""
FAILURES: Final = Rate(burst=32.0, a_second=0.5)
ALL_FAILURES: Final = Rate(burst=512.0, a_second=20.0)
"""TokenReviews that may fail, by address and in all."""

V = TypeVar("V")
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
class ReviewedTokens(ABC, Generic[V]):
    """`cluster`: None without one. `clock`: monotonic seconds; `wall`: seconds since 1970."""

    cluster: Callable[[], Cluster | None]
    audience: str
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    fresh_seconds: float = FRESH_SECONDS
    failures: AddressRateLimit = field(init=False)
    """Of reviews of tokens never seen before. Each is counted when it begins, and given back unless the token is
    refused."""
    # Apart, so that guesses push no good token out.
    _good: Recent[bytes, tuple[float, V]] = field(default_factory=lambda: Recent(MOST_KNOWN))
    _bad: Recent[bytes, float] = field(default_factory=lambda: Recent(MOST_KNOWN))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.failures = AddressRateLimit(FAILURES, ALL_FAILURES, clock=self.clock)

    def known(self, token: str) -> V | None:
        """What it is good for, from memory alone."""
        entry = self._good.get(token_digest(token))
        return entry[1] if entry is not None and entry[0] > self.clock() else None

    def seen(self, token: str) -> bool:
        """Whether it was good in the last SEEN_SECONDS."""
        entry = self._good.get(token_digest(token))
        return entry is not None and entry[0] + SEEN_SECONDS > self.clock()

    def refused(self, token: str) -> bool:
        """Whether it is bad, by its unverified claims or because it was refused a moment ago."""
        if self._bad.get(token_digest(token), 0.0) > self.clock():
            return True
        why = self.why_never(token)
        if why:
            log.info("service_account.token_never", why=why)
        return bool(why)

    def verify(self, token: str) -> V | None:
        """What it is good for; None for nothing. Asks the API server unless it is `known`. Raises ReviewFailed."""
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
        accepted = None if reviewed is None else self.accepted(reviewed, digest)
        with self._lock:
            if accepted is None:
                self._good.pop(digest, None)
                self._bad[digest] = self.clock() + REFUSED_SECONDS
            else:
                fresh_seconds = min(self.fresh_seconds, ends_at(token) - self.wall())
                self._good[digest] = self.clock() + fresh_seconds, accepted
        return accepted

    @abstractmethod
    def why_never(self, token: str) -> str:
        """Why no API server would accept the token, by its unverified claims; empty where one may."""

    @abstractmethod
    def accepted(self, reviewed: Reviewed, digest: bytes) -> V | None:
        """What a token of this account is good for; None for nothing."""
