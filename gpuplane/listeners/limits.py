"""How much a listener lets a client take before any application code runs: connections, bytes and time.

Read by `connections`, `bounded_http`, `bounded_sockets` and `accepting`; `gpuplane.serve` makes the `Limits` of a
listener from the settings. The sizes of bodies are in `body_limits`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from agent.protocol import FRAME_LIMIT

HEAD_BYTES: Final = 32 * 1024
"""Of a request's line and headers together; of what is between two pieces of a chunked body, and after it."""
HEAD_SECONDS: Final = 10.0
"""From accept, or from the first byte of a later request, until the head is complete."""
HEAD_FIELDS: Final = 128
"""Header lines of a request."""
PIPELINED_REQUESTS: Final = 16
"""Requests that wait on a connection while an earlier one is answered. Browsers and Go's client do not pipeline."""
HANDSHAKE_SECONDS: Final = 10.0
"""For a TLS handshake."""

BODY_WINDOW_SECONDS: Final = 10
"""The rate of a body is checked once in so many seconds in which the client could send."""
BODY_BYTES_A_SECOND: Final = 4 * 1024
"""The least that is received within each window, on average; a fast start gives no credit for a later pause."""
CHUNKS: Final = 4096
"""Chunks of a chunked body that may have any size."""
CHUNK_BYTES: Final = 64
"""The least average size of chunks beyond CHUNKS: each costs as much as a hundred bytes."""
LATE_BODY_BYTES: Final = 256 * 1024
LATE_BODY_SECONDS: Final = 10
"""What is still read of a body after its request was answered."""

UNREAD_SECONDS: Final = 30.0
UNREAD_BYTES: Final = 120 * 1024
"""What a client reads at least in UNREAD_SECONDS, once the system's buffers are full."""
ANSWER_SECONDS: Final = 1.0
"""How long a refused client has to read the refusal, while nothing more is read from it."""
KEEP_ALIVE_SECONDS: Final = 100
"""Between two requests. kube-scheduler and the API server close first, after 90 s, so none of their requests meets a
connection that is being closed.
"""

MESSAGE_BYTES: Final = FRAME_LIMIT
"""Of one WebSocket message, all its frames together. Agents send the largest."""
SOCKET_FRAMES_AT_ONCE: Final = 400
SOCKET_FRAMES_A_SECOND: Final = 50.0
"""WebSocket frames of a peer, pings and empty ones included. An agent may send 200 at once and ten a second."""

SPARE_FILES: Final = 512
"""Open files that connections leave to the database, to Redis, to the cluster and to files."""
SHARE_OF_ONE: Final = 0.75
"""The largest share of all connections that one address may have, accepted streams included."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Limits:
    """Connections of one listener.

    Addresses of `trusted` proxies, and loopback where `loopback_trusted`, have no limit of their own.
    """

    connections: int
    per_address: int
    trusted: tuple[Network, ...] = ()
    loopback_trusted: bool = True

    def trusts(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Whether many clients may share the address: it is a trusted proxy's, or of the same machine or pod."""
        if self.loopback_trusted and address.is_loopback:
            return True
        return any(address in network for network in self.trusted)


def listener_limits(
    *, connections: int, per_address: int, proxies: Iterable[str], open_files: int, listeners: int = 1
) -> Limits:
    """The limits of each of `listeners`, which together leave SPARE_FILES of the process's `open_files`.

    `proxies`: addresses and networks.
    """
    return Limits(
        connections=max(min(connections, (open_files - SPARE_FILES) // listeners), 1),
        per_address=per_address,
        trusted=tuple(ipaddress.ip_network(proxy) for proxy in proxies),
    )
