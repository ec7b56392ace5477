"""Finds a pod's GpuClaim on the hot path: one query, and each spec is parsed once.

With a cluster a miss is read from the API server, since the claim may be too new for the watch. If that does not
answer, the refusal says so instead of calling the claim missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec
import structlog
from django.conf import settings

from claims.dialects.claim_manifest import ClaimSpec, malformed_claim, parse_claim_spec
from claims.dialects.request import Refusal
from claims.kinds import CLAIM
from claims.manifest_metadata import ManifestInvalid
from claims.mirror import mirror
from kube import crds
from kube.errors import KubeError, NotFoundInCluster
from kube.shared import shared_cluster
from storage.clock import database_now
from storage.cursors import hot_cursor

READ_SECONDS = 2.0
CACHED_MOST = 4096
CACHED_LONGEST = 1024
"""Most characters of a cached spec: with its request some 4 KB, so 16 MB in all. A claim for one model has 80."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClaimFinder:
    """The `FindClaim` of one request; `claim_id` is the id of the row it found."""

    claim_id: int | None = None

    def __call__(self, namespace: str, name: str) -> ClaimSpec | Refusal | None:
        """The claim's spec, a refusal if the stored one is malformed, or None."""
        with hot_cursor() as cursor:
            cursor.execute("SELECT id, spec FROM claims_gpuclaim WHERE namespace = %s AND name = %s", [namespace, name])
            row = cursor.fetchone()
        if row is None:
            return self._read_through(namespace, name) if settings.GPUPLANE_KUBECONFIG else None
        self.claim_id = row[0]
        return _parsed(name, row[1])

    def _read_through(self, namespace: str, name: str) -> ClaimSpec | Refusal | None:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if cluster is None:
            return None
        try:
            stored = crds.get(cluster, CLAIM.resource, namespace=namespace, name=name, timeout=READ_SECONDS)
        except NotFoundInCluster:
            return None
        except (KubeError, ValueError) as error:
            log.warning("claims.unread", namespace=namespace, name=name, error=str(error))
            return Refusal(
                rule="claim-unread",
                reason=f"whether GpuClaim {name} exists cannot be read from the API server now; it is asked again",
            )
        claim = mirror(CLAIM, stored=stored, now=database_now())
        self.claim_id = claim.pk
        return _parsed(name, msgspec.json.encode(claim.spec).decode())


def _parsed(name: str, spec: str) -> ClaimSpec | Refusal:
    """The parsed spec. Long ones are not cached, so that the cache is bounded in bytes."""
    return _cached(name, spec) if len(spec) <= CACHED_LONGEST else _parse(name, spec)


def _parse(name: str, spec: str) -> ClaimSpec | Refusal:
    try:
        return parse_claim_spec(msgspec.json.decode(spec))
    except ManifestInvalid as error:
        return malformed_claim(name, error)


_cached = lru_cache(maxsize=CACHED_MOST)(_parse)
