"""Who is connected to one listener, counted from accept to the end, in all and by address.

Used by `accepting`, which takes a place for each connection, and by the protocols, which say what it does. Invariants: there are
never more connections than `Limits` says; a connection counts until it is closed, whatever protocol it speaks by then; memory is
proportional to the connections that are open. Where there is no room, the connection that has been without a request for longest
makes room (one in its TLS handshake, one whose head is not complete, one that is kept alive); a connection whose request is under
way never does, and where all are, the newcomer is refused. Of one address, streams that were let in do not count against
`per_address`: thousands of agents behind one NAT are no crowd of strangers.
"""

from __future__ import annotations

import ipaddress
from collections import Counter as Tally
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from gpuplane.doors.limits import SHARE_OF_ONE, Limits

REASONS: Final = (
    "listener-full",
    "address-full",
    "no-files",
    "handshake",
    "handshake-time",
    "silent",
    "head-time",
    "head-bytes",
    "head-fields",
    "malformed",
    "pipelined",
    "body-time",
    "body-chunks",
    "body-late",
    "unread",
    "socket-frames",
)
UNTOLD: Final = frozenset({"handshake", "silent"})
"""Counted and not logged: load balancers and browsers connect and leave again without a word."""
TELL_SECONDS: Final = 1.0
PREFIX_BITS: Final = 64
"""Of an IPv6 address: a machine has that network to itself and takes as many addresses of it as it likes."""

REFUSED = Counter(
    "gpuplane_connections_refused", "Connections that were refused, or ended at a limit", ["listener", "reason"]
)
OPEN = Gauge("gpuplane_connections", "Open connections, TLS handshakes among them", ["listener"])

log = structlog.get_logger(__name__)
Later = Callable[[float, Callable[[], None]], object]


class _Address:
    """One address: its connections, and those without a request, the longest so first."""

    __slots__ = ("count", "idle", "let_in", "trusted")

    def __init__(self, *, trusted: bool) -> None:
        self.trusted = trusted
        self.count = 0
        self.let_in = 0
        self.idle: dict[Place, None] = {}


class Place:
    """One connection's. Begins without a request; `end` is how it is closed at once, set by whoever has it."""

    __slots__ = ("_address", "_connections", "_let_in", "end", "key")

    def __init__(self, connections: Connections, key: str, address: _Address) -> None:
        self._connections: Connections | None = connections
        self._address = address
        self._let_in = False
        self.key = key
        self.end: Callable[[], object] | None = None

    def busy(self) -> None:
        """A request is under way: the connection cannot be asked to make room."""
        if self._connections is not None:
            self._connections.idle.pop(self, None)
            self._address.idle.pop(self, None)

    def idle(self) -> None:
        """None is."""
        if self._connections is not None:
            self._connections.idle[self] = None
            self._address.idle[self] = None

    def let_in(self) -> None:
        """The application sent something into the stream: it knows who is there. Idempotent."""
        if self._connections is not None and not self._let_in:
            self._let_in = True
            self._address.let_in += 1

    def refused(self, reason: str) -> None:
        """Count why the connection ends."""
        if self._connections is not None:
            self._connections.refused(reason, self.key)

    def release(self) -> None:
        """It is closed. Idempotent."""
        if self._connections is None:
            return
        self.busy()
        self._connections.released(self.key, self._address, let_in=self._let_in)
        self._connections = self.end = None


class Connections:
    """Of one listener. Used on its event loop alone."""

    def __init__(self, listener: str, limits: Limits, call_later: Later) -> None:
        """`call_later` as that of the event loop."""
        self._limits = limits
        self._listener = listener
        self._call_later = call_later
        self._count = 0
        self._addresses: dict[str, _Address] = {}
        self.idle: dict[Place, None] = {}
        self._counted = {reason: REFUSED.labels(listener, reason) for reason in REASONS}
        self._open = OPEN.labels(listener)
        self._untold: Tally[str] = Tally()
        self._telling = False

    def take(self, host: str) -> Place | None:
        """A place for a connection from an address; None when it is refused, which is counted."""
        parsed = ipaddress.ip_address(host.partition("%")[0])
        mapped = parsed.ipv4_mapped if parsed.version == 6 else None
        at = mapped or parsed
        key = str(at) if at.version == 4 else str(ipaddress.ip_network((at, PREFIX_BITS), strict=False))
        address = self._addresses.get(key) or _Address(trusted=self._limits.trusts(at))
        if self._full(address) and not self._make_room(address.idle, "address-full", key):
            return None
        if self._count >= self._limits.connections and not self._make_room(self.idle, "listener-full", key):
            return None
        self._addresses[key] = address
        address.count += 1
        self._count += 1
        self._open.inc()
        place = Place(self, key, address)
        place.idle()
        return place

    def refused(self, reason: str, key: str) -> None:
        """Count it, and write it to the log, at most one line in TELL_SECONDS."""
        self._counted[reason].inc()
        if reason in UNTOLD:
            return
        self._untold[reason] += 1
        if not self._telling:
            self._telling = True
            self._call_later(TELL_SECONDS, lambda: self._tell(key))

    def released(self, key: str, address: _Address, *, let_in: bool) -> None:
        """Called by a place."""
        address.count -= 1
        address.let_in -= let_in
        self._count -= 1
        self._open.dec()
        if not address.count:
            self._addresses.pop(key, None)

    def _full(self, address: _Address) -> bool:
        if address.trusted:
            return False
        strangers = address.count - address.let_in
        return strangers >= self._limits.per_address or address.count >= SHARE_OF_ONE * self._limits.connections

    def _make_room(self, idle: dict[Place, None], reason: str, key: str) -> bool:
        self.refused(reason, key)
        longest = next(iter(idle), None)
        if longest is None:
            return False
        end = longest.end
        longest.release()
        if end is not None:
            end()
        return True

    def _tell(self, key: str) -> None:
        self._telling = False
        log.warning("door.refused", door=self._listener, first=key, **_named(self._untold))
        self._untold.clear()


def _named(counts: Tally[str]) -> dict[str, int]:
    return {reason.replace("-", "_"): count for reason, count in counts.items()}
