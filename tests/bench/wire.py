"""A client that costs next to nothing: one blocking socket, keep-alive, requests made beforehand.

Used by `over_http`. Invariants: product and floor are asked through the same code with the same bytes
but for the path, in rounds that alternate, so that whatever disturbs the machine disturbs both.
"""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.bench.serving import FLOOR


class Wire:
    """One connection to the web process. `tokens` by the beginning of a path: the first that fits."""

    def __init__(self, url: str, tokens: Mapping[str, str]) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname, place.port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fixed = {
            prefix: (
                f"Host: {place.hostname}:{place.port}\r\nAuthorization: Bearer {token}\r\n"
                "Content-Type: application/json\r\nUser-Agent: kube-scheduler/v1.33\r\nAccept-Encoding: identity\r\n"
            ).encode()
            for prefix, token in tokens.items()
        }

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def request(self, path: str, body: bytes = b"", *, method: str = "POST") -> bytes:
        """The bytes of a request."""
        return b"%s %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
            method.encode(),
            path.encode(),
            next(fixed for prefix, fixed in self._fixed.items() if path.startswith(prefix)),
            len(body),
            body,
        )

    def timed(self, request: bytes) -> tuple[int, bytes]:
        """(nanoseconds from the first byte sent to the last received, body of the answer). Raises on any but 200."""
        began = time.perf_counter_ns()
        self._socket.sendall(request)
        received = self._socket.recv(1 << 20)
        end = received.find(b"\r\n\r\n")
        while end < 0:
            received += self._socket.recv(1 << 20)
            end = received.find(b"\r\n\r\n")
        length = _length(received[:end])
        parts = [received[end + 4 :]]
        missing = length - len(parts[0])
        while missing > 0:
            parts.append(self._socket.recv(1 << 20))
            missing -= len(parts[-1])
        took = time.perf_counter_ns() - began
        body = b"".join(parts)
        if not received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{received[:120]!r} {body[:400]!r}")
        return took, body


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise RuntimeError(f"no Content-Length in {head!r}")


@dataclass
class Rounds:
    """Times in nanoseconds, round by round: product beside floor."""

    product: list[list[int]] = field(default_factory=list)
    floor: list[list[int]] = field(default_factory=list)


def alternate(
    wire: Wire,
    *,
    path: str,
    bodies: Callable[[int], Sequence[bytes]],
    rounds: int,
    check: Callable[[bytes], object],
    after: Callable[[], None] = lambda: None,
    method: str = "POST",
) -> Rounds:
    """Ask product and floor in turns. `bodies(round)` are the requests of one round, the same for both.

    `check` looks at every answer of the product, outside the time; `after` runs after each of them, too.
    The first round warms up and is not kept.
    """
    found = Rounds()
    size = 2
    for number in range(rounds + 1):
        asked = bodies(number)
        product, size = _product(wire, [wire.request(path, body, method=method) for body in asked], check, after)
        floor = _floor(wire, [wire.request(f"{FLOOR}{size}", body) for body in asked])
        if number:
            found.product.append(product)
            found.floor.append(floor)
    return found


def _product(
    wire: Wire, requests: Iterable[bytes], check: Callable[[bytes], object], after: Callable[[], None]
) -> tuple[list[int], int]:
    times, size = [], 2
    gc.disable()
    for request in requests:
        took, body = wire.timed(request)
        times.append(took)
        size = len(body)
        check(body)
        after()
    gc.enable()
    return times, size


def _floor(wire: Wire, requests: Iterable[bytes]) -> list[int]:
    gc.disable()
    times = [wire.timed(request)[0] for request in requests]
    gc.enable()
    return times
