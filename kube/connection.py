"""One way to an API server: address, TLS, credentials, and a pool of kept-alive connections.

Made by `kube.client` through the official loaders, which know kubeconfig files, exec plugins, proxies and
mounted ServiceAccounts. Kept true: no request goes out without a deadline, no redirect is followed, no retry is hidden here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
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

from kube.direct import Answer, Direct
from kube.errors import NotConfigured, Unreachable
from kube.evented import Evented
from kube.waiting import about_to_wait

ConfigurationSource = Callable[[], Any]
"""Makes a fresh `kubernetes.client.Configuration`; called again when the credentials were refused."""

CONNECT_SECONDS: Final = 5.0
EVENTED_SHARE: Final = 4
"""So many requests an event loop has under way for each connection that threads keep."""
_ACCEPTED: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""Said aloud: where nothing is said of codings every one counts as welcome, and a proxy on the way asks the server for gzip."""
REFRESH_SECONDS: Final = 1.0
"""The event loop looks that often whether its credentials are to be renewed."""
_UNUSABLE: Final = (ConfigException, OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError)
"""What the official loader raises for a file that is no kubeconfig: it walks through it without looking."""


def configuration_source(kubeconfig: Path | None) -> ConfigurationSource:
    """From a kubeconfig file, or, with None, from the ServiceAccount mounted into the pod. The file is never written to."""

    def load() -> Any:
        configuration = Configuration()
        try:
            if kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the client ships no types
            else:
                load_kube_config(  # type: ignore[no-untyped-call]  # the client ships no types
                    config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
                )
        except _UNUSABLE as error:
            where = "in-cluster credentials" if kubeconfig is None else f"kubeconfig {kubeconfig}"
            raise NotConfigured(f"{where}: {error}") from error
        return configuration

    return load


class Connection:
    """Address, pool and credentials of one load of the configuration. Safe to share between threads."""

    def __init__(self, configuration: Any, *, pool_size: int, agent: str) -> None:
        configuration.connection_pool_maxsize = pool_size
        configuration.keep_alive = True  # TCP probes find a peer that vanished during a watch
        configuration.retries = False
        self._manager: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        self._base = str(configuration.host).rstrip("/")
        direct = not isinstance(self._manager, urllib3.ProxyManager)
        # one pool looked up once spares every request the way through the manager, which only a proxy needs
        self._pool = self._manager.connection_from_url(self._base) if direct else None
        self._direct = None if self._pool is None else Direct(self._pool, size=pool_size)
        self._prefix = (parse_url(self._base).path or "") if direct else self._base
        self._agent = agent
        self._refresh = configuration.refresh_api_key_hook
        # what the loader's hook writes into: a whole Configuration would look for proxies in the environment each time
        self._credentials = SimpleNamespace(api_key=dict(configuration.api_key))
        self._lock = threading.Lock()
        self._size = pool_size
        self._fresh_until = float("-inf")

    def send(
        self, method: str, target: str, *, body: bytes | None, content_type: str, timeout_seconds: float
    ) -> Answer | urllib3.BaseHTTPResponse:
        """One request, once, and its whole answer. `timeout_seconds` bounds connecting and each wait for bytes. Raises urllib3's exceptions, `Unreachable`."""
        about_to_wait()
        headers = self._headers(content_type if body is not None else "", self._authorization())
        if self._direct is None:
            return self._by_urllib3(method, target, headers, body, timeout_seconds, preload=True)
        return self._direct.send(
            method,
            self._prefix + target,
            headers=headers,
            body=body,
            connect=min(timeout_seconds, CONNECT_SECONDS),
            wait=timeout_seconds,
        )

    def stream(self, target: str, *, timeout_seconds: float) -> urllib3.BaseHTTPResponse:
        """A GET whose body is read bit by bit. Bounds and errors as with `send`."""
        about_to_wait()
        return self._by_urllib3(
            "GET", target, self._headers("", self._authorization()), None, timeout_seconds, preload=False
        )

    @property
    def direct(self) -> bool:
        """Whether the server is reached without a proxy."""
        return self._pool is not None

    def evented(self) -> Evented:
        """Connections for the running event loop. Raises `NotConfigured` where the server is not reached directly."""
        if self._pool is None:
            raise NotConfigured("the API server is reached through a proxy")
        return Evented(self._pool, size=self._size * EVENTED_SHARE)

    async def send_evented(
        self,
        evented: Evented,
        method: str,
        target: str,
        *,
        body: bytes,
        content_type: str,
        seconds: float,
        before: float,
    ) -> Answer:
        """Like `send`, over those connections; `before` as in `Evented.send`. Renews credentials in a thread, since that may take a plugin's time."""
        if self._refresh is not None and time.monotonic() >= self._fresh_until:
            await asyncio.get_running_loop().run_in_executor(None, self._authorization)
            self._fresh_until = time.monotonic() + REFRESH_SECONDS
        return await evented.send(
            method,
            self._prefix + target,
            headers=self._headers(content_type, self._bearer()),
            body=body,
            connect=min(seconds, CONNECT_SECONDS),
            wait=seconds,
            before=before,
        )

    def _by_urllib3(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, seconds: float, *, preload: bool
    ) -> urllib3.BaseHTTPResponse:
        return (self._pool or self._manager).urlopen(
            method,
            self._prefix + target,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(seconds, CONNECT_SECONDS), read=seconds),
            retries=False,
            redirect=False,
            preload_content=preload,
        )

    def _headers(self, content_type: str, authorization: Mapping[str, str]) -> dict[str, str]:
        headers = {**_ACCEPTED, "User-Agent": self._agent, **authorization}
        return headers | {"Content-Type": content_type} if content_type else headers

    def close(self) -> None:
        """Close idle connections; those in use close when they come back."""
        if self._direct is not None:
            self._direct.close()
        self._manager.clear()

    def _authorization(self) -> Mapping[str, str]:
        """The header of the moment. The loader's hook re-reads token files and runs exec plugins again when they expire."""
        try:
            with self._lock:
                if self._refresh is not None:
                    self._refresh(self._credentials)
                return self._bearer()
        except (ConfigException, OSError, ValueError) as error:
            raise Unreachable(f"credentials cannot be read: {error}") from error

    def _bearer(self) -> Mapping[str, str]:
        value = self._credentials.api_key.get("BearerToken")
        return {"Authorization": value.strip()} if value else {}
