"""Which listeners open, where, and what each permits: up to three, for one application.

Called by `gpuplane.serve` and `gpuplane.run`; pure. Invariants: `/extender/` is never reachable without a credential
from outside this machine: the main listener asks for a bearer token, `https://` for a client certificate, and plain
HTTP without credentials stays on loopback. The webhook listener is TLS; it asks for a client certificate where
`webhook_client_ca` is given, and else answers everybody: its answers then reveal nothing that the request did not hold.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

AGENT_PATHS: Final = ("/ws/agents/", "/ws/runners/", "/api/v1/agents/", "/livez", "/readyz", "/metrics")
"""Paths of a process that serves the programs on nodes alone: agents and runners."""


class ListenAddressRefused(Exception):
    """The settings ask for a listener that is not allowed; the text names the variable and the rule."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate (chain), key, and the CA whose client certificates are required (None: asks for none)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """One listening address. `prefixes` empty permits every path; `bearer` asks cluster paths for a token."""

    name: str
    host: str
    port: int
    tls: Tls | None = None
    prefixes: tuple[str, ...] = ()
    bearer: bool = True

    def permits(self, path: str) -> bool:
        """Whether the path is served here."""
        return not self.prefixes or path.startswith(self.prefixes)

    @property
    def anonymous(self) -> bool:
        """Whether it serves the network without asking for a credential."""
        return not self.bearer and self.tls is not None and self.tls.client_ca is None

    @property
    def plain(self) -> bool:
        """Whether it is plain HTTP without credentials, on loopback."""
        return not self.bearer and self.tls is None

    @property
    def url(self) -> str:
        """The URL for people; a wildcard host is shown as localhost."""
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def listen_addresses(settings: Any, *, port: int) -> tuple[ListenAddress, ...]:
    """The listeners by Django's settings, the main one, at `port`, first. Raises ListenAddressRefused."""
    main_tls = _tls(settings, "GPUPLANE_MAIN_TLS=1") if settings.GPUPLANE_MAIN_TLS else None
    prefixes = AGENT_PATHS if settings.GPUPLANE_AGENTS_ONLY else ()
    planned = [ListenAddress("main", settings.GPUPLANE_HOST, port, main_tls, prefixes)]
    if settings.GPUPLANE_EXTENDER_LISTEN:
        planned.append(_extender(settings))
    if settings.GPUPLANE_WEBHOOK_LISTEN:
        planned.append(_webhook(settings))
    return tuple(planned)


def is_loopback(host: str) -> bool:
    """Whether only this machine (or pod) can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _extender(settings: Any) -> ListenAddress:
    setting = f"GPUPLANE_EXTENDER_LISTEN={settings.GPUPLANE_EXTENDER_LISTEN}"
    scheme, host, port = _split(settings.GPUPLANE_EXTENDER_LISTEN)
    loopback = is_loopback(host)
    if scheme == "http" and not loopback:
        raise ListenAddressRefused(
            f"{setting}: plain HTTP without credentials is only for loopback; "
            "use https:// with GPUPLANE_TLS_CERT, GPUPLANE_TLS_KEY and GPUPLANE_CLIENT_CA"
        )
    if loopback and scheme != "https":
        return ListenAddress("extender", host, port, None, ("/extender/",), bearer=False)
    tls = _tls(settings, setting, client_ca=settings.GPUPLANE_CLIENT_CA)
    if tls.client_ca is None:
        raise ListenAddressRefused(
            f"{setting}: HTTPS needs GPUPLANE_CLIENT_CA, "
            "since kube-scheduler can only show who it is by a client certificate"
        )
    return ListenAddress("extender", host, port, tls, ("/extender/",), bearer=False)


def _webhook(settings: Any) -> ListenAddress:
    setting = f"GPUPLANE_WEBHOOK_LISTEN={settings.GPUPLANE_WEBHOOK_LISTEN}"
    scheme, host, port = _split(settings.GPUPLANE_WEBHOOK_LISTEN)
    if scheme == "http":
        raise ListenAddressRefused(f"{setting}: the API server speaks only TLS to webhooks")
    tls = _tls(settings, setting, client_ca=settings.GPUPLANE_WEBHOOK_CLIENT_CA)
    return ListenAddress("webhook", host, port, tls, ("/webhooks/",), bearer=False)


def _tls(settings: Any, setting: str, *, client_ca: Path | None = None) -> Tls:
    if settings.GPUPLANE_TLS_CERT is None or settings.GPUPLANE_TLS_KEY is None:
        raise ListenAddressRefused(f"{setting}: needs GPUPLANE_TLS_CERT and GPUPLANE_TLS_KEY")
    return Tls(settings.GPUPLANE_TLS_CERT, settings.GPUPLANE_TLS_KEY, client_ca)


def _split(listen: str) -> tuple[str, str, int]:
    """(scheme or "", host without brackets, port) of `[scheme://]host:port`, whose shape the settings checked."""
    scheme, separator, address = listen.partition("://")
    if not separator:
        scheme, address = "", listen
    host, _, port = address.rpartition(":")
    return scheme, host.removeprefix("[").removesuffix("]"), int(port)
