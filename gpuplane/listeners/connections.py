"""Counts the connections of one listener, from accept to close, in all and by address.

Used by `accepting`, which takes a slot for each connection, and by the protocols, which report its state. Invariants:
- There are never more connections than `Limits` allows; a connection counts until it is closed, whatever its protocol.
- Memory is proportional to the open connections.
- Where a listener or an address is full, its connection that has been without a request for longest is closed (one in
  its TLS handshake, one whose head is not complete, one that is kept alive). A connection whose request is under way
  never is: where all are, the new connection is refused.
- Streams do not count against `per_address`, so that thousands of agents may connect through one NAT.
"""

from __future__ import annotations

import ipaddress
from collections import Counter as Tally
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from access.networks import network_of
from gpuplane.listeners.limits import SHARE_OF_ONE, Limits

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
UNLOGGED: Final = frozenset({"handshake", "silent"})
"""Counted and not logged: load balancers and browsers connect and leave again without a request."""
LOG_SECONDS: Final = 1.0

REFUSED = Counter(
    "gpuplane_connections_refused", "Connections that were refused, or ended at a limit", ["listener", "reason"]
)
OPEN = Gauge("gpuplane_connections", "Open connections, TLS handshakes among them", ["listener"])

log = structlog.get_logger(__name__)
CallLater = Callable[[float, Callable[[], None]], object]


class _Address:
    """One address: its connections, streams, and idle connections, the one idle longest first."""

    __slots__ = ("count", "idle", "streams", "trusted")

    def __init__(self, *, trusted: bool) -> None:
        self.trusted = trusted
        self.count = 0
        self.streams = 0
        self.idle: dict[ConnectionSlot, None] = {}


class ConnectionSlot:
    """The place of one connection, idle at first. `end` closes the connection at once; its present protocol sets it."""

    __slots__ = ("_address", "_connections", "_stream", "end", "key")

    def __init__(self, connections: Connections, key: str, address: _Address) -> None:
        self._connections: Connections | None = connections
        self._address = address
        self._stream = False
        self.key = key
        self.end: Callable[[], object] | None = None

    def busy(self) -> None:
        """Note that a request is under way: the connection is not closed to make room."""
        if self._connections is not None:
            self._connections.idle.pop(self, None)
            self._address.idle.pop(self, None)

    def idle(self) -> None:
        """Note that no request is under way."""
        if self._connections is not None:
            self._connections.idle[self] = None
            self._address.idle[self] = None

    def mark_stream(self) -> None:
        """Note that the application has sent something into a WebSocket, so its peer is authenticated. Idempotent."""
        if self._connections is not None and not self._stream:
            self._stream = True
            self._address.streams += 1

    def refused(self, reason: str) -> None:
        """Count why the connection ends."""
        if self._connections is not None:
            self._connections.refused(reason, self.key)

    def release(self) -> None:
        """Note that the connection is closed. Idempotent."""
        if self._connections is None:
            return
        self.busy()
        self._connections.released(self.key, self._address, stream=self._stream)
        self._connections = self.end = None


class Connections:
    """The connections of one listener. Used on its event loop alone."""

    def __init__(self, listener: str, limits: Limits, call_later: CallLater) -> None:
        """`call_later`: the event loop's."""
        self._limits = limits
        self._listener = listener
        self._call_later = call_later
        self._count = 0
        self._addresses: dict[str, _Address] = {}
        self.idle: dict[ConnectionSlot, None] = {}
        self._counted = {reason: REFUSED.labels(listener, reason) for reason in REASONS}
        self._open = OPEN.labels(listener)
        self._unlogged: Tally[str] = Tally()
        self._log_scheduled = False

    def take(self, host: str) -> ConnectionSlot | None:
        """A slot for a connection from an address; None when it is refused, which is counted."""
        parsed = ipaddress.ip_address(host.partition("%")[0])
        mapped = parsed.ipv4_mapped if parsed.version == 6 else None
        at = mapped or parsed
        key = network_of(host)
        address = self._addresses.get(key) or _Address(trusted=self._limits.trusts(at))
        if self._full(address) and not self._make_room(address.idle, "address-full", key):
            return None
        if self._count >= self._limits.connections and not self._make_room(self.idle, "listener-full", key):
            return None
        self._addresses[key] = address
        address.count += 1
        self._count += 1
        self._open.inc()
        slot = ConnectionSlot(self, key, address)
        slot.idle()
        return slot

    def refused(self, reason: str, key: str) -> None:
        """Count a refusal, and log refusals at most once in LOG_SECONDS."""
        self._counted[reason].inc()
        if reason in UNLOGGED:
            return
        self._unlogged[reason] += 1
        if not self._log_scheduled:
            self._log_scheduled = True
            self._call_later(LOG_SECONDS, lambda: self._log(key))

    def released(self, key: str, address: _Address, *, stream: bool) -> None:
        """Called by a slot."""
        address.count -= 1
        address.streams -= stream
        self._count -= 1
        self._open.dec()
        if not address.count:
            self._addresses.pop(key, None)

    def _full(self, address: _Address) -> bool:
        if address.trusted:
            return False
        others = address.count - address.streams
        return others >= self._limits.per_address or address.count >= SHARE_OF_ONE * self._limits.connections

    def _make_room(self, idle: dict[ConnectionSlot, None], reason: str, key: str) -> bool:
        self.refused(reason, key)
        longest = next(iter(idle), None)
        if longest is None:
            return False
        end = longest.end
        longest.release()
        if end is not None:
            end()
        return True

    def _log(self, key: str) -> None:
        self._log_scheduled = False
        counts = {reason.replace("-", "_"): count for reason, count in self._unlogged.items()}
        log.warning("listener.refused", listener=self._listener, first=key, **counts)
        self._unlogged.clear()
