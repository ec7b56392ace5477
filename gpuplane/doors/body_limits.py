"""How large a request body may be, by path and credential: the one table that every door reads.

Used by `cluster`, `agents` and the guard in front of Django (`bodies`). The limit holds for each body, the budget for
all bodies of its kind that the process keeps at one time, so that many large ones cannot add up to its memory.

Invariants:
- `GPUPLANE_BODY_LIMIT` is the limit of `/extender/`, and no path has a higher one.
- A caller without a session cookie and without an Authorization header sends 64 KiB at most.
- No budget is smaller than the limit of its paths.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.protocol import FRAME_LIMIT
from gpuplane.doors import Scope

KIB: Final = 1024
MIB: Final = 1024 * KIB

BIND_BYTES: Final = 64 * KIB
"""Four names. It is decoded on the event loop."""
WEBHOOK_BYTES: Final = 3 * MIB
"""The API server takes objects up to 3 MiB itself, and etcd 1.5 MiB; a review of a change carries two."""
AGENT_BYTES: Final = FRAME_LIMIT
INVENTORY_BYTES: Final = 1 * MIB
SIMULATION_BYTES: Final = 4 * MIB
OTHER_BYTES: Final = 1 * MIB
"""Pages, and everything else under `/api/`."""
ANONYMOUS_BYTES: Final = 64 * KIB
LARGEST_OF_DJANGO_BYTES: Final = max(INVENTORY_BYTES, SIMULATION_BYTES, OTHER_BYTES)


UPLOAD_SECONDS: Final = 1.0
"""How long an upload keeps its place where others find none."""


class Kind(StrEnum):
    """Kinds of requests to Django; none ever waits for one of another kind."""

    PAGES = "pages"
    REST = "rest"
    WRITES = "writes"
    """REST requests that change something, but for simulations. SQLite writes for one at a time: filter waits for few of them."""
    SIMULATIONS = "simulations"
    """What-if, over REST and by its page: each may take ten seconds."""
    STRANGERS = "strangers"
    """Signing in, and every caller without a credential."""
    PROBES = "probes"
    """Readiness and metrics."""
    ALIVE = "alive"
    """`/livez`, which needs nothing but a thread."""


class Budget:
    """Bytes of bodies that may be in memory at one time. Used on one event loop.

    `unfinished`: what ends each upload that is under way, the one that began longest ago first. Where there is no room,
    those are ended that had UPLOAD_SECONDS: whoever sends slowly, to keep the room taken, keeps nobody out.
    """

    __slots__ = ("_clock", "most_bytes", "name", "taken_bytes", "unfinished")

    def __init__(self, name: str, most_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.most_bytes = most_bytes
        self.taken_bytes = 0
        self.unfinished: dict[Callable[[], None], float] = {}
        self._clock = clock

    def begin(self, end: Callable[[], None]) -> None:
        """An upload of which more is to come. `end` gives its bytes back at once, and stops it."""
        self.unfinished[end] = self._clock()

    def has_room(self, size_bytes: int, *, asked_by: Callable[[], None] | None = None) -> bool:
        """Whether so many more bytes fit, if need be in the place of uploads that take long, but for the one that asks."""
        if self.taken_bytes + size_bytes <= self.most_bytes:
            return True
        before = self._clock() - UPLOAD_SECONDS
        for end, began in list(self.unfinished.items()):
            if began > before:
                break
            if end == asked_by:
                continue
            del self.unfinished[end]
            end()
            if self.taken_bytes + size_bytes <= self.most_bytes:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Bound:
    """What holds for one path."""

    limit_bytes: int
    budget: Budget
    kind: Kind = Kind.PAGES


_INVENTORY: Final = re.compile(r"/api/v1/nodes/[^/]*/inventory/?")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PROBES: Final = frozenset({"/readyz", "/metrics"})
_WHAT_IF: Final = "/simulate/"
_SIGN_IN: Final = frozenset({"/sign-in/", "/admin/login/"})


class BodyLimits:
    """The table. `body_limit`: GPUPLANE_BODY_LIMIT, in bytes."""

    def __init__(self, body_limit: int) -> None:
        def bound(limit: int, budget: Budget, kind: Kind = Kind.PAGES) -> Bound:
            return Bound(min(limit, body_limit), budget, kind)

        extender = Budget("extender", max(96 * MIB, 3 * body_limit))
        signed_in, strangers = Budget("signed-in", 32 * MIB), Budget("strangers", 8 * MIB)
        self._bind = bound(BIND_BYTES, extender)
        self._extender = bound(body_limit, extender)
        self._webhooks = bound(WEBHOOK_BYTES, Budget("webhooks", 32 * MIB))
        self.agents: Final = bound(AGENT_BYTES, Budget("agents", 32 * MIB))
        self._simulations = bound(SIMULATION_BYTES, Budget("simulations", 16 * MIB), Kind.SIMULATIONS)
        self._inventories = bound(INVENTORY_BYTES, signed_in, Kind.WRITES)
        self._rest = bound(OTHER_BYTES, signed_in, Kind.REST)
        self._writes = bound(OTHER_BYTES, signed_in, Kind.WRITES)
        self._pages = bound(OTHER_BYTES, signed_in)
        self._what_if_page = bound(OTHER_BYTES, signed_in, Kind.SIMULATIONS)
        self._strangers = bound(ANONYMOUS_BYTES, strangers, Kind.STRANGERS)
        self._probes = bound(ANONYMOUS_BYTES, strangers, Kind.PROBES)
        self._alive = bound(ANONYMOUS_BYTES, strangers, Kind.ALIVE)

    def of_cluster(self, path: str) -> Bound:
        """A path under `/extender/` or `/webhooks/`. Who may send there is known before the body is read."""
        if path == "/extender/bind":
            return self._bind
        return self._webhooks if path.startswith("/webhooks/") else self._extender

    def of_django(self, scope: Scope) -> Bound:
        """Any path that Django answers."""
        path: str = scope["path"]
        if path == "/livez":
            return self._alive
        if path in _PROBES:
            return self._probes
        if path in _SIGN_IN or not has_credential(scope):
            return self._strangers
        if not path.startswith("/api/"):
            return self._what_if_page if path == _WHAT_IF and scope["method"] == "POST" else self._pages
        if path.startswith("/api/v1/simulations"):
            return self._simulations
        if scope["method"] in _READS:
            return self._rest
        return self._inventories if _INVENTORY.fullmatch(path) else self._writes


def has_credential(scope: Scope) -> bool:
    """Whether the caller brings a session cookie or an Authorization header, good or not."""
    return any(
        name == b"authorization" or (name == b"cookie" and b"sessionid=" in value) for name, value in scope["headers"]
    )


def credential_key(scope: Scope) -> str:
    """Tells callers apart by what they bring, good or not; only for as long as the process lives."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(hash(value))
        if name == b"cookie" and b"sessionid=" in value:
            return str(hash(value.partition(b"sessionid=")[2].partition(b";")[0]))
    return ""
