"""How large a request body may be, by path and credential.

Used by `cluster`, `agents` and the guard in front of Django (`bodies`). The limit holds for each body, the budget for
all bodies of its kind that the process keeps at one time.

Invariants:
- `GPUPLANE_BODY_LIMIT` is the limit of `/extender/`, and no path has a higher one.
- A caller without a session cookie and, under `/api/`, without a bearer token sends 64 KiB at most.
- No budget is smaller than the limit of its paths.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from django.conf import settings
from django.http import parse_cookie

from access.authorization import bearer_token
from agent.protocol import FRAME_LIMIT
from gpuplane.listeners import Scope

KIB: Final = 1024
MIB: Final = 1024 * KIB

BIND_BYTES: Final = 64 * KIB
"""Four names. It is decoded on the event loop."""
WEBHOOK_BYTES: Final = 3 * MIB
"""The API server takes objects up to 3 MiB itself, and etcd 1.5 MiB; a review of a change carries two."""
AGENT_BYTES: Final = FRAME_LIMIT
INVENTORY_BYTES: Final = 1 * MIB
LARGE_INVENTORY_BYTES: Final = 128 * KIB
"""From here on inventories have a rate limit (`bodies`): 90 GPUs, each wired to each, or more. To write 256 takes
50 ms, for which filter waits on SQLite, and 25 ms of the next filter."""
SIMULATION_BYTES: Final = 4 * MIB
GGUF_HEADER_BYTES: Final = 16 * MIB
"""The largest vocabularies take half of it."""
GATEWAY_BYTES: Final = 16 * MIB
"""Prompts with some images. All that wait for a slot are kept in memory, within their budget."""
OTHER_BYTES: Final = 1 * MIB
"""Pages, and everything else under `/api/`."""
ANONYMOUS_BYTES: Final = 64 * KIB
LARGEST_OF_DJANGO_BYTES: Final[int] = max(INVENTORY_BYTES, SIMULATION_BYTES, GGUF_HEADER_BYTES, OTHER_BYTES)

UPLOAD_SECONDS: Final = 1.0
"""How long an upload is safe from being ended to make room."""


class RequestKind(StrEnum):
    """Kinds of requests to Django; none waits for one of another kind."""

    PAGES = "pages"
    REST = "rest"
    WRITES = "writes"
    """REST requests that change something, but for simulations. SQLite writes for one at a time, filter included."""
    SIMULATIONS = "simulations"
    """What-if, over REST and by its page, each of which may take ten seconds; headers of models' files."""
    ANONYMOUS = "anonymous"
    """Signing in, and every caller without a credential."""
    PROVIDERS = "providers"
    """Signing in by a provider, for which the provider is waited for."""
    SERVICE_ACCOUNTS = "service-accounts"
    """REST by ServiceAccounts' tokens, for which the API server is waited for."""
    PROBES = "probes"
    """Readiness and metrics."""
    ALIVE = "alive"
    """`/livez`, which needs nothing but a thread."""


class Budget:
    """Bytes of bodies that may be in memory at one time. Used on one event loop.

    `unfinished`: what ends each upload under way, the oldest first. Where there is no room, uploads older than
    UPLOAD_SECONDS are ended, so that slow senders keep nobody out.
    """

    __slots__ = ("_clock", "most_bytes", "name", "taken_bytes", "unfinished")

    def __init__(self, name: str, most_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.most_bytes = most_bytes
        self.taken_bytes = 0
        self.unfinished: dict[Callable[[], None], float] = {}
        self._clock = clock

    def begin(self, end: Callable[[], None]) -> None:
        """Register an upload of which more is to come. `end` gives its bytes back and stops it."""
        self.unfinished[end] = self._clock()

    def has_room(self, size_bytes: int, *, keep: Callable[[], None]) -> bool:
        """Whether so many more bytes fit, after ending slow uploads if need be; never the upload that `keep` ends."""
        if self.taken_bytes + size_bytes <= self.most_bytes:
            return True
        before = self._clock() - UPLOAD_SECONDS
        for end, began in list(self.unfinished.items()):
            if began > before:
                break
            if end == keep:
                continue
            del self.unfinished[end]
            end()
            if self.taken_bytes + size_bytes <= self.most_bytes:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Bound:
    """What applies to one path."""

    limit_bytes: int
    budget: Budget
    kind: RequestKind = RequestKind.PAGES
    paced_bytes: int | None = None
    """Bodies of this size and more have a rate limit."""


_INVENTORY: Final = re.compile(r"/api/v1/nodes/[^/]*/inventory/?")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PROBES: Final = frozenset({"/readyz", "/metrics"})
_WHAT_IF: Final = "/simulate/"
_BY_PROVIDER: Final = "/sign-in/with/"
_SIGN_IN: Final = frozenset({"/sign-in/", "/admin/login/"})


class BodyLimits:
    """The table. `body_limit`: GPUPLANE_BODY_LIMIT, in bytes."""

    def __init__(self, body_limit: int) -> None:
        def bound(limit: int, budget: Budget, kind: RequestKind = RequestKind.PAGES) -> Bound:
            return Bound(min(limit, body_limit), budget, kind)

        extender = Budget("extender", max(96 * MIB, 3 * body_limit))
        signed_in, anonymous = Budget("signed-in", 32 * MIB), Budget("anonymous", 8 * MIB)
        self._bind = bound(BIND_BYTES, extender)
        self._extender = bound(body_limit, extender)
        self._webhooks = bound(WEBHOOK_BYTES, Budget("webhooks", 32 * MIB))
        self.agents: Final = bound(AGENT_BYTES, Budget("agents", 32 * MIB))
        self.gateway: Final = bound(GATEWAY_BYTES, Budget("gateway", 128 * MIB))
        self._simulations = bound(SIMULATION_BYTES, Budget("simulations", 16 * MIB), RequestKind.SIMULATIONS)
        self._gguf_headers = bound(GGUF_HEADER_BYTES, Budget("gguf-headers", 32 * MIB), RequestKind.SIMULATIONS)
        self._inventories = replace(
            bound(INVENTORY_BYTES, signed_in, RequestKind.WRITES), paced_bytes=LARGE_INVENTORY_BYTES
        )
        self._rest = bound(OTHER_BYTES, signed_in, RequestKind.REST)
        self._writes = bound(OTHER_BYTES, signed_in, RequestKind.WRITES)
        self._pages = bound(OTHER_BYTES, signed_in)
        self._what_if_page = bound(OTHER_BYTES, signed_in, RequestKind.SIMULATIONS)
        self._anonymous = bound(ANONYMOUS_BYTES, anonymous, RequestKind.ANONYMOUS)
        self._providers = bound(ANONYMOUS_BYTES, anonymous, RequestKind.PROVIDERS)
        self._probes = bound(ANONYMOUS_BYTES, anonymous, RequestKind.PROBES)
        self._alive = bound(ANONYMOUS_BYTES, anonymous, RequestKind.ALIVE)

    def of_cluster(self, path: str) -> Bound:
        """A path under `/extender/` or `/webhooks/`, where the caller is known before the body is read."""
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
        if path.startswith(_BY_PROVIDER):
            return self._providers
        if path in _SIGN_IN or not credential_key(scope):
            return self._anonymous
        if not path.startswith("/api/"):
            return self._what_if_page if path == _WHAT_IF and scope["method"] == "POST" else self._pages
        if path.startswith("/api/v1/simulations"):
            return self._simulations
        if path.startswith("/api/v1/gguf-headers"):
            return self._gguf_headers
        found = self._rest
        if scope["method"] not in _READS:
            found = self._inventories if _INVENTORY.fullmatch(path) else self._writes
        return replace(found, kind=RequestKind.SERVICE_ACCOUNTS) if _brings_jwt(scope) else found


def _brings_jwt(scope: Scope) -> bool:
    """Whether the caller brings a ServiceAccount's token, for which the API server may be asked."""
    return any(name == b"authorization" and value.count(b".") == 2 for name, value in scope["headers"])


def credential_key(scope: Scope) -> str:
    """Identifies a caller by its bearer token or session cookie, valid or not, within this process.

    Empty without either. Both are read as Django and REST read them, so that one credential has one key however it is
    written: under `/api/` a bearer token goes first, pages know the cookie alone.
    """
    if scope["path"].startswith("/api/"):
        token = bearer_token(_joined(scope, b"authorization"))
        if token is not None:
            return str(hash(token)) if token else ""
    session = parse_cookie(_joined(scope, b"cookie").decode("latin-1")).get(settings.SESSION_COOKIE_NAME)
    return str(hash(session)) if session else ""


def _joined(scope: Scope, name: bytes) -> bytes:
    """All headers of this lower-case name, joined as Django does."""
    return b",".join(value for key, value in scope["headers"] if key == name)
