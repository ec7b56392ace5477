"""An API server as the official client's configuration describes it: address, TLS, credentials, proxy.

The official loaders read kubeconfig files, exec plugins and mounted ServiceAccounts; the official connection manager
handles proxies and streams. No redirect is followed and nothing is retried here.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import urllib3
import yaml
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import load_incluster_config
from kubernetes.config.kube_config import load_kube_config
from urllib3.util import parse_url

from kube.credential_calls import CredentialCall, NoAnswer
from kube.errors import Invalid, NotConfigured, Unreachable
from kube.http1 import Request

ConfigurationSource = Callable[[], Any]
"""Loads a `kubernetes.client.Configuration`; called again when the credentials were refused."""

CONNECT_SECONDS: Final = 5.0
_AGENT: Final = "gpuplane"
REFRESH_SECONDS: Final = 1.0
"""How long credentials are used before the loader's hook is called again."""
_ACCEPTED: Final = "Accept: application/json\r\nAccept-Encoding: identity\r\n"
"""Without Accept-Encoding a proxy on the way may ask the server for gzip."""
_UNUSABLE: Final = (ConfigException, OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError)
"""What the official loader raises for a file that is not a kubeconfig; it does not validate."""


def configuration_source(kubeconfig: Path | None) -> ConfigurationSource:
    """Load from a kubeconfig file, which is never written to, or with None from the mounted ServiceAccount."""

    def read() -> Any:
        configuration = Configuration()
        if kubeconfig is None:
            load_incluster_config(  # type: ignore[no-untyped-call]  # the client ships no types
                client_configuration=configuration
            )
        else:
            load_kube_config(  # type: ignore[no-untyped-call]  # the client ships no types
                config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
            )
        return configuration

    reading = CredentialCall(read)

    def load() -> Any:
        try:
            return reading.result()
        except (NoAnswer, *_UNUSABLE) as error:
            where = "in-cluster credentials" if kubeconfig is None else f"kubeconfig {kubeconfig}"
            raise NotConfigured(f"{where}: {error}") from error

    return load


class Server:
    """One load of the configuration. Safe to share between threads."""

    def __init__(self, configuration: Any, *, connections: int) -> None:
        """`connections`: kept by the official connection manager. Raises `NotConfigured`."""
        configuration.connection_pool_maxsize = connections
        configuration.keep_alive = True  # TCP probes find a peer that vanished during a watch
        configuration.retries = False
        self._manager: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        self._base = str(configuration.host).rstrip("/")
        url = parse_url(self._base)
        self.proxied = type(self._manager) is not urllib3.PoolManager  # a ProxyManager, or one of SOCKS
        self.host = (url.host or "").strip("[]")
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.context = _context(configuration) if url.scheme == "https" else None
        self.server_name: str | None = (configuration.tls_server_name or self.host) if self.context else None
        self._prefix = url.path or ""
        bracketed = f"[{self.host}]" if ":" in self.host else self.host
        self._head = f"Host: {bracketed}:{self.port}\r\n{_ACCEPTED}User-Agent: {_AGENT}\r\n"
        self._refresh = configuration.refresh_api_key_hook
        # what the loader's hook writes into: a whole Configuration would look for proxies in the environment each time
        self._credentials = SimpleNamespace(api_key=dict(configuration.api_key))
        self._renewal = CredentialCall(self._renew)
        self._fresh_until = float("-inf")

    def encode(self, request: Request) -> bytes:
        """The bytes of a request. Raises `Invalid` for line breaks in the target or in a header."""
        target, body, content_type, bearer = request.target, request.body, request.content_type, self._bearer()
        if " " in target or any(end in text for text in (target, bearer, content_type) for end in "\r\n"):
            raise Invalid("not to be sent: it would end its line", request=f"{request.method} {target!r}")
        head = f"{request.method} {self._prefix}{target} HTTP/1.1\r\n{self._head}"
        head += f"Authorization: {bearer}\r\n" if bearer else ""
        if body is None:
            return f"{head}\r\n".encode("latin-1")
        return f"{head}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    def by_manager(self, request: Request, *, whole: bool) -> urllib3.BaseHTTPResponse:
        """Send a request through the official connection manager; the whole answer, or a stream.

        `seconds` bounds connecting and each wait for bytes. Raises urllib3's exceptions.
        """
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": _AGENT}
        bearer = self._bearer()
        headers |= {"Authorization": bearer} if bearer else {}
        headers |= {"Content-Type": request.content_type} if request.body is not None else {}
        return self._manager.urlopen(
            request.method,
            self._base + request.target,
            body=request.body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(request.seconds, CONNECT_SECONDS), read=request.seconds),
            retries=False,
            redirect=False,
            preload_content=whole,
        )

    @property
    def may_have_ended(self) -> bool:
        """Whether the credentials have to be renewed before the next request."""
        return self._refresh is not None and time.monotonic() >= self._fresh_until

    def renew(self) -> None:
        """Call the loader's hook, which reloads expired token files and runs exec plugins again.

        It may take as long as a plugin does, within bounds. Raises `Unreachable` when the credentials cannot be read.
        """
        if self._refresh is None:
            return
        try:
            self._credentials = self._renewal.result()
        except (NoAnswer, ConfigException, OSError, ValueError) as error:
            self._fresh_until = float("-inf")
            raise Unreachable(f"credentials cannot be read: {error}") from error
        self._fresh_until = time.monotonic() + REFRESH_SECONDS

    def close(self) -> None:
        """Close the manager's idle connections."""
        self._manager.clear()

    def _renew(self) -> SimpleNamespace:
        """The credentials of now, apart from those in use, which a call that was abandoned does not replace.

        The official loader itself may keep what that call brought late, until the API server refuses it.
        """
        credentials = SimpleNamespace(api_key=dict(self._credentials.api_key))
        self._refresh(credentials)
        return credentials

    def _bearer(self) -> str:
        return (self._credentials.api_key.get("BearerToken") or "").strip()


def _context(configuration: Any) -> ssl.SSLContext:
    """TLS as configured: trusted authorities and the client certificate."""
    try:
        context = ssl.create_default_context(
            cafile=configuration.ssl_ca_cert or None, cadata=configuration.ca_cert_data or None
        )
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise NotConfigured(f"certificates cannot be read: {error}") from error
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
