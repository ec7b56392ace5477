"""Which doors open, where, and what each permits: three doors, one application.

Called by `gpuplane.serve` with the settings' values; pure. Kept true: `/extender/` is never reachable without a
credential from outside this machine: the main door asks for a bearer token, `https://` for a client certificate, and
plain HTTP without credentials stays on loopback. The webhook door is TLS; it asks for a client certificate where
`webhook_client_ca` is given, and else answers anybody: then its answers say nothing that the question did not hold.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

AGENT_PATHS: Final = ("/ws/agents/", "/api/v1/agents/", "/livez", "/readyz", "/metrics")
"""What a process that serves agents alone answers."""


class DoorRefused(Exception):
    """The settings ask for a door that may not open; the text names the variable and the rule."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate (chain), key, and the CA whose client certificates are required (None: asks for none)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """One listening address. `prefixes` empty permits every path; `bearer` asks cluster paths for a token."""

    name: str
    host: str
    port: int
    tls: Tls | None = None
    prefixes: tuple[str, ...] = ()
    bearer: bool = True

    def permits(self, path: str) -> bool:
        """Whether the path may be asked for here."""
        return not self.prefixes or path.startswith(self.prefixes)

    @property
    def anonymous(self) -> bool:
        """Whether anybody on the network may ask here without showing who it is."""
        return not self.bearer and self.tls is not None and self.tls.client_ca is None

    @property
    def plain(self) -> bool:
        """Whether it is open to whoever runs on this machine: loopback, without TLS and credentials."""
        return not self.bearer and self.tls is None

    @property
    def url(self) -> str:
        """Address for people; a wildcard host is shown as localhost."""
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def doors(
    *,
    host: str,
    port: int,
    extender_listen: str = "",
    webhook_listen: str = "",
    certificate: Path | None = None,
    key: Path | None = None,
    client_ca: Path | None = None,
    webhook_client_ca: Path | None = None,
    main_tls: bool = False,
    agents_only: bool = False,
) -> tuple[Door, ...]:
    """The doors that the settings ask for, the main one first. Raises DoorRefused.

    `agents_only`: the main door permits AGENT_PATHS alone.
    """
    main = _tls("GPUPLANE_MAIN_TLS", "1", certificate, key) if main_tls else None
    planned = [Door("main", host, port, main, AGENT_PATHS if agents_only else ())]
    if extender_listen:
        planned.append(_extender(extender_listen, certificate, key, client_ca))
    if webhook_listen:
        scheme, webhook_host, webhook_port = _split(webhook_listen)
        if scheme == "http":
            raise DoorRefused(f"GPUPLANE_WEBHOOK_LISTEN={webhook_listen}: the API server speaks only TLS to webhooks")
        tls = _tls("GPUPLANE_WEBHOOK_LISTEN", webhook_listen, certificate, key, client_ca=webhook_client_ca)
        planned.append(Door("webhook", webhook_host, webhook_port, tls, ("/webhooks/",), bearer=False))
    return tuple(planned)


def is_loopback(host: str) -> bool:
    """Whether only this machine (or pod) can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _extender(listen: str, certificate: Path | None, key: Path | None, client_ca: Path | None) -> Door:
    scheme, host, port = _split(listen)
    loopback = is_loopback(host)
    if scheme == "http" and not loopback:
        raise DoorRefused(
            f"GPUPLANE_EXTENDER_LISTEN={listen}: plain HTTP without credentials is only for loopback; "
            "use https:// with GPUPLANE_TLS_CERT, GPUPLANE_TLS_KEY and GPUPLANE_CLIENT_CA"
        )
    if scheme == "http" or (not scheme and loopback):
        return Door("extender", host, port, None, ("/extender/",), bearer=False)
    tls = _tls("GPUPLANE_EXTENDER_LISTEN", listen, certificate, key, client_ca=client_ca)
    if client_ca is None:
        raise DoorRefused(
            f"GPUPLANE_EXTENDER_LISTEN={listen}: HTTPS needs GPUPLANE_CLIENT_CA, "
            "since kube-scheduler can only show who it is by a client certificate"
        )
    return Door("extender", host, port, tls, ("/extender/",), bearer=False)


def _tls(
    variable: str, listen: str, certificate: Path | None, key: Path | None, *, client_ca: Path | None = None
) -> Tls:
    if certificate is None or key is None:
        raise DoorRefused(f"{variable}={listen}: needs GPUPLANE_TLS_CERT and GPUPLANE_TLS_KEY")
    return Tls(certificate, key, client_ca)


def _split(listen: str) -> tuple[str, str, int]:
    """(scheme or "", host without brackets, port) of `[scheme://]host:port`, whose shape the settings checked."""
    scheme, separator, address = listen.partition("://")
    if not separator:
        scheme, address = "", listen
    host, _, port = address.rpartition(":")
    return scheme, host.removeprefix("[").removesuffix("]"), int(port)
