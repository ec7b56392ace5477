"""One way to an API server: address, TLS, credentials, and a pool of kept-alive connections.

Made by `kube.client` through the official loaders, which know kubeconfig files, exec plugins, proxies and
mounted ServiceAccounts. Kept true: no request goes out without a deadline, no redirect is followed, no retry is hidden here.
"""

from __future__ import annotations

import threading
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

from kube.errors import NotConfigured, Unreachable

ConfigurationSource = Callable[[], Any]
"""Makes a fresh `kubernetes.client.Configuration`; called again when the credentials were refused."""

CONNECT_SECONDS: Final = 5.0
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
        self._prefix = (parse_url(self._base).path or "") if direct else self._base
        self._agent = agent
        self._refresh = configuration.refresh_api_key_hook
        # what the loader's hook writes into: a whole Configuration would look for proxies in the environment each time
        self._credentials = SimpleNamespace(api_key=dict(configuration.api_key))
        self._lock = threading.Lock()

    def send(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None,
        content_type: str,
        timeout_seconds: float,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """One request, once. `timeout_seconds` bounds connecting and each wait for bytes. Raises urllib3's exceptions, `Unreachable`."""
        headers = {"Accept": "application/json", "User-Agent": self._agent, **self._authorization()}
        if body is not None:
            headers["Content-Type"] = content_type
        return (self._pool or self._manager).urlopen(
            method,
            self._prefix + target,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(timeout_seconds, CONNECT_SECONDS), read=timeout_seconds),
            retries=False,
            redirect=False,
            preload_content=preload,
        )

    def close(self) -> None:
        """Close idle connections; those in use close when they come back."""
        self._manager.clear()

    def _authorization(self) -> Mapping[str, str]:
        """The header of the moment. The loader's hook re-reads token files and runs exec plugins again when they expire."""
        try:
            with self._lock:
                if self._refresh is not None:
                    self._refresh(self._credentials)
                value = self._credentials.api_key.get("BearerToken")
        except (ConfigException, OSError, ValueError) as error:
            raise Unreachable(f"credentials cannot be read: {error}") from error
        return {"Authorization": value.strip()} if value else {}
