"""What an attacker and honest clients know of the product: written to a file, read by their processes. No Django."""

from __future__ import annotations

import json
import ssl
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
CONNECTIONS = 400
"""That a listener takes: fewer than by default, so that a light attacker reaches the end of them."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One address. `prefix`: a path that it permits. `ca`: file of the CA where it speaks TLS, else empty."""

    name: str
    port: int
    prefix: str
    ca: str = ""

    def context(self) -> ssl.SSLContext | None:
        """For clients that check the certificate; None without TLS."""
        return ssl.create_default_context(cafile=self.ca) if self.ca else None


@dataclass(frozen=True, slots=True)
class Target:
    """The product under attack.

    `tokens` by kind: admin, viewer, service (the scheduler's), metrics, webhooks, inventory, agent, other-agent,
    revoked. `session`: a signed-in browser's cookie.
    """

    main: Listener
    extender: Listener
    webhook: Listener
    tokens: dict[str, str] = field(default_factory=dict)
    session: str = ""
    agent_node: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """All of them."""
        return (self.main, self.extender, self.webhook)

    def write(self, path: Path) -> None:
        """For the other processes."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote."""
        told = json.loads(path.read_text())
        for name in ("main", "extender", "webhook"):
            told[name] = Listener(**told[name])
        return cls(**{**told, "nodes": tuple(told["nodes"])})
