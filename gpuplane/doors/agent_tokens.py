"""Agents that sign in by the token of their ServiceAccount: whom the API server says they are, remembered for a minute.

Called by `bearer`, `verify` in a thread.

Invariants:
- An agent is known by its ServiceAccount, and speaks for the node of the pod to which its token is bound, and for no
  other.
- The token itself is not kept.
- While the API server is away nobody new is let in, and who was let in lately still is.
- The API server is asked about nothing that cannot be an agent's token by what it says of itself, at most once in
  `REFUSED_SECONDS` about a token that it refused, and about tokens never seen before only as often as `Allowance` lets
  an address, and all, be refused.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from access.actors import Actor
from access.choices import Role, TokenScope
from gpuplane.doors.pace import Allowance
from gpuplane.doors.unverified import LONGEST, why_never
from kube.client import Cluster
from kube.errors import KubeError
from kube.token_reviews import Reviewed, review

FRESH_SECONDS: Final = 60.0
MET_SECONDS: Final = 86_400.0
"""So long a token that was good goes before those that were never seen. ServiceAccount tokens of pods live an hour."""
REFUSED_SECONDS: Final = 10.0
MOST_KNOWN: Final = 16_384
SECONDS: Final = 5.0
"""For the API server's answer: an agent comes again."""
ADDRESS_BURST: Final = 32.0
ADDRESS_A_SECOND: Final = 0.5
ALL_BURST: Final = 512.0
ALL_A_SECOND: Final = 20.0
"""Reviews that may fail, by address and in all: at one time, and further ones a second."""
_ALL: Final = ""

Kept = TypeVar("Kept")

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
    wall: Callable[[], float] = time.time
    _good: dict[bytes, tuple[float, Actor]] = field(default_factory=dict)
    _bad: dict[bytes, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _by_address: Allowance = field(init=False)
    _in_all: Allowance = field(init=False)

    def __post_init__(self) -> None:
        self._by_address = Allowance(burst=ADDRESS_BURST, a_second=ADDRESS_A_SECOND, clock=self.clock)
        self._in_all = Allowance(burst=ALL_BURST, a_second=ALL_A_SECOND, clock=self.clock, most=1)

    def known(self, token: str) -> Actor | None:
        """Who it is, from memory alone."""
        entry = self._good.get(_digest(token))
        return entry[1] if entry is not None and entry[0] > self.clock() else None

    def met(self, token: str) -> bool:
        """Whether it was good at some time today."""
        entry = self._good.get(_digest(token))
        return entry is not None and entry[0] + MET_SECONDS > self.clock()

    def refused(self, token: str) -> bool:
        """Whether it is nobody's, without asking.

        By what it says of itself, or by what the API server said a moment ago.
        """
        if self._bad.get(_digest(token), 0.0) > self.clock():
            return True
        why = why_never(token, account=self.account, audience=self.audience, now=self.wall())
        if why:
            log.info("agent.token_never", why=why)
        return bool(why)

    def may_ask(self, address: str) -> bool:
        """Whether the API server may be asked about a token never seen before, from this address.

        Counts as a failure until `was_good`.
        """
        if not self._by_address.take(address):
            return False
        if self._in_all.take(_ALL):
            return True
        self._by_address.give_back(address)
        return False

    def was_good(self, address: str) -> None:
        """What was asked by `may_ask` was no failure of the caller's."""
        self._by_address.give_back(address)
        self._in_all.give_back(_ALL)

    def verify(self, token: str) -> Actor | None:
        """Who it is, None for nobody who may speak for a node. Asks the API server at most once a minute a token. Raises ReviewAway."""
        known = self.known(token)
        if known is not None:
            return known
        digest = _digest(token)
        if self._bad.get(digest, 0.0) > self.clock():
            return None
        cluster = self.cluster()
        if cluster is None:
            return None
        try:
            reviewed = review(cluster, token=token, audience=self.audience, timeout=SECONDS)
        except KubeError as error:
            raise ReviewAway(str(error)) from error
        actor = self._actor(reviewed)
        with self._lock:
            if actor is None:
                self._good.pop(digest, None)
                _put(self._bad, digest, self.clock() + REFUSED_SECONDS)
            else:
                _put(self._good, digest, (self.clock() + FRESH_SECONDS, actor))
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


def _put(memory: dict[bytes, Kept], digest: bytes, value: Kept) -> None:
    """Good and bad ones are kept apart, so that guesses push no good one out."""
    memory.pop(digest, None)
    while len(memory) >= MOST_KNOWN:
        del memory[next(iter(memory))]
    memory[digest] = value


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
