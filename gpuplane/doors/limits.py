"""How much a listener lets a client take before any application code runs: connections, bytes and time.

Read by `connections`, `bounded_http`, `bounded_sockets` and `accepting`; `gpuplane.serve` makes the `Limits` of a listener from the settings. What a
body may weigh, and how much all bodies may weigh together, is of `bodies`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from agent.protocol import FRAME_LIMIT

HEAD_BYTES: Final = 32 * 1024
"""Of a request's line and headers together; of what stands between two pieces of a chunked body, and behind it."""
HEAD_SECONDS: Final = 10.0
"""From accept, or from the first byte of a later request, until the head is complete."""
HEAD_FIELDS: Final = 128
"""Header lines of a request."""
PIPELINED_REQUESTS: Final = 16
"""Requests that wait on a connection while an earlier one is answered. Browsers and Go's client send none so."""
HANDSHAKE_SECONDS: Final = 10.0
"""For a TLS handshake."""

BODY_WINDOW_SECONDS: Final = 10
"""A body is looked at once in so many seconds in which it was the client's turn to send."""
BODY_BYTES_A_SECOND: Final = 4 * 1024
"""The least that comes within each window, on average. A window for itself, so that a fast beginning gives no credit for a pause."""
CHUNKS: Final = 4096
"""Chunks of a chunked body that may have any size."""
CHUNK_BYTES: Final = 64
"""The average size of those beyond: each chunk costs as much as a hundred bytes."""
LATE_BODY_BYTES: Final = 256 * 1024
LATE_BODY_SECONDS: Final = 10
"""What is read of a body after its request was answered."""

UNREAD_SECONDS: Final = 30.0
UNREAD_BYTES: Final = 120 * 1024
"""What a client reads at least in that time, once more than the system's buffers hold waits for it."""
ANSWER_SECONDS: Final = 1.0
"""How long a refused client has to read why, while nothing more is read from it."""
KEEP_ALIVE_SECONDS: Final = 100
"""Between two requests. kube-scheduler and the API server close after 90 s: it is them who do, so none of their requests meets a connection
that is being closed."""

MESSAGE_BYTES: Final = FRAME_LIMIT
"""Of one WebSocket message, all its frames together. Agents' are the largest."""
SOCKET_FRAMES_AT_ONCE: Final = 400
SOCKET_FRAMES_A_SECOND: Final = 50.0
"""WebSocket frames of a peer, pings and empty ones too. An agent may send 200 at once and ten a second."""

SPARE_FILES: Final = 512
"""Open files that connections leave to the database, to Redis, to the cluster and to files."""
SHARE_OF_ONE: Final = 0.75
"""Of all connections, what those of one address may be at most, streams that were let in among them."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Limits:
    """Connections of one listener. Addresses of `trusted` proxies, and loopback where `loopback_trusted`, have no limit of their own."""

    connections: int
    per_address: int
    trusted: tuple[Network, ...] = ()
    loopback_trusted: bool = True
    everybody_trusted: bool = False

    def trusts(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Whether many clients may stand behind one address: a proxy that was named, or a neighbour in the same machine or pod."""
        if self.everybody_trusted or (self.loopback_trusted and address.is_loopback):
            return True
        return any(address in network for network in self.trusted)


def limits(
    *, connections: int, per_address: int, proxies: Iterable[str], open_files: int, listeners: int = 1
) -> Limits:
    """From the settings: `proxies` as uvicorn reads them in FORWARDED_ALLOW_IPS (addresses, networks, `*`); `open_files` that the process may have.

    All its `listeners` together leave SPARE_FILES.
    """
    told = [one.strip() for one in proxies]
    networks = [network for one in told if (network := _network(one)) is not None]
    return Limits(
        connections=max(min(connections, (open_files - SPARE_FILES) // listeners), 1),
        per_address=per_address,
        trusted=tuple(networks),
        everybody_trusted="*" in told,
    )


def _network(text: str) -> Network | None:
    """None for what is no network: uvicorn takes names too, which no connection has."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
