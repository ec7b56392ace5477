"""How long a hold lasts: longer only where kube-scheduler has to wait between filter and bind (LEASE-3).

Called by filter, once, when it has found devices. kube-scheduler refuses a pod before filter while a volume claim of a
class that binds at once is unbound, so it waits (up to its own time-out of 600 s) only for an unbound claim of a class
that waits for its first consumer, or for a resource claim without devices.

Invariants: pods that name no such claim cost nothing; each kind of object is read at most once a filter, within
`READ_SECONDS` and without a retry; what cannot be read counts as unbound; after a failed read nothing is read for
`QUIET_SECONDS`. The process caches only what does not change back: bound claims, and the binding modes of classes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from django.conf import settings

from allocations.backends import current_backends
from allocations.pod_request import PodRequest, UnboundClaims
from kube.client import Cluster
from kube.errors import KubeError
from kube.volumes import WAITS, binding_modes, resource_claims, volume_claims
from storage.transactions import release_connection

READ_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 5.0
BOUND_SECONDS: Final = 30.0
"""How long a bound claim is not read again."""
CLASS_SECONDS: Final = 60.0
REMEMBERED: Final = 10_000

log = structlog.get_logger(__name__)


def hold_seconds(pod_request: PodRequest) -> int:
    """Seconds that a hold for this pod lasts."""
    if pod_request.awaited is None:
        return pod_request.hold_seconds
    cluster = current_backends().cluster
    waits = cluster is None or READER.waits(pod_request.awaited, cluster)
    return int(settings.GPUPLANE_LONG_HOLD_SECONDS) if waits else pod_request.hold_seconds


class Reader:
    """Reads claims, and caches those that are bound for a short while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bound: dict[tuple[str, str, str], float] = {}
        self._modes: dict[str, str] = {}
        self._modes_at = float("-inf")
        self._quiet_until = float("-inf")

    def waits(self, awaited: UnboundClaims, cluster: Cluster) -> bool:
        """Whether kube-scheduler has to wait for one of the claims, or may have to."""
        if "" in awaited.volume_claims or "" in awaited.resource_claims:
            return True  # not made yet
        volumes = self._unknown("volume", awaited.namespace, awaited.volume_claims)
        claims = self._unknown("resource", awaited.namespace, awaited.resource_claims)
        if not volumes and not claims:
            return False
        if self._clock() < self._quiet_until:
            return True
        release_connection()
        try:
            return (bool(volumes) and self._volumes_wait(awaited.namespace, volumes, cluster)) or (
                bool(claims) and self._claims_wait(awaited.namespace, claims, cluster)
            )
        except (KubeError, ValueError) as error:
            self._quiet_until = self._clock() + QUIET_SECONDS
            log.warning("hold.claims_unread", namespace=awaited.namespace, error=str(error))
            return True

    def _volumes_wait(self, namespace: str, names: list[str], cluster: Cluster) -> bool:
        found = volume_claims(cluster, namespace=namespace, names=names, seconds=READ_SECONDS)
        self._remember("volume", namespace, [name for name, claim in found.items() if claim.bound])
        if len(found) < len(names):
            return True
        classes = {claim.storage_class for claim in found.values() if not claim.bound} - {""}
        modes = self._binding_modes(classes, cluster) if classes else {}
        return any(modes.get(name, WAITS) == WAITS for name in classes)

    def _claims_wait(self, namespace: str, names: list[str], cluster: Cluster) -> bool:
        found = resource_claims(cluster, namespace=namespace, names=names, seconds=READ_SECONDS)
        allocated = [name for name, claim in found.items() if claim.allocated]
        self._remember("resource", namespace, allocated)
        return len(allocated) < len(names)

    def _binding_modes(self, classes: set[str], cluster: Cluster) -> dict[str, str]:
        now = self._clock()
        with self._lock:
            if classes <= self._modes.keys() and now - self._modes_at < CLASS_SECONDS:
                return self._modes
        modes = binding_modes(cluster, seconds=READ_SECONDS)
        with self._lock:
            self._modes, self._modes_at = modes, now
        return modes

    def _unknown(self, kind: str, namespace: str, names: tuple[str, ...]) -> list[str]:
        """Those that are not known to be bound."""
        oldest = self._clock() - BOUND_SECONDS
        with self._lock:
            return [name for name in names if self._bound.get((kind, namespace, name), float("-inf")) < oldest]

    def _remember(self, kind: str, namespace: str, names: list[str]) -> None:
        now = self._clock()
        with self._lock:
            if len(self._bound) + len(names) > REMEMBERED:
                self._bound.clear()
            self._bound.update({(kind, namespace, name): now for name in names})


READER = Reader()
"""The process's."""
