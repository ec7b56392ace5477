"""Finding a GpuClaim for a pod, on the hot path: one query, and each spec parsed once.

With a cluster a miss is read through to the API server once, as the claim may be so new that the watch has
not brought it yet; an API server that does not answer is said to be so, not that the claim is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import structlog
from django.conf import settings

from audit.clock import database_now
from audit.cursors import hot_cursor
from claims.dialects.gpuclaim import ClaimInvalid, ClaimSpec, parse_claim_spec
from claims.dialects.request import Refusal
from claims.mirror import claim_mirror
from kube import crds
from kube.errors import KubeError, NotFoundInCluster
from kube.shared import shared_cluster

READ_SECONDS = 2.0
KEPT_MOST = 4096
KEPT_LONGEST = 1024
"""Characters of a spec that is kept parsed: with its request some 4 KB, so 16 MB of all. A claim for one model has 80."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClaimFinder:
    """`find_claim` of one request; remembers the row's id of what it found."""

    claim_id: int | None = field(default=None)

    def __call__(self, namespace: str, name: str) -> ClaimSpec | Refusal | None:
        """The claim's spec, a refusal when the stored one is malformed, None when there is none."""
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
            stored = crds.get(cluster, namespace=namespace, name=name, timeout=READ_SECONDS)
        except NotFoundInCluster:
            return None
        except (KubeError, ValueError) as error:
            log.warning("claims.unread", namespace=namespace, name=name, error=str(error))
            return Refusal(
                rule="claim-unread",
                reason=f"whether GpuClaim {name} exists cannot be read from the API server now; it is asked again",
            )
        claim = claim_mirror(stored=stored, now=database_now())
        self.claim_id = claim.pk
        return _parsed(name, msgspec.json.encode(claim.spec).decode())


def _parsed(name: str, spec: str) -> ClaimSpec | Refusal:
    """What a stored spec asks for. Long ones are parsed each time, so that what is kept is bounded by bytes."""
    return _kept(name, spec) if len(spec) <= KEPT_LONGEST else _read(name, spec)


@lru_cache(maxsize=KEPT_MOST)
def _kept(name: str, spec: str) -> ClaimSpec | Refusal:
    return _read(name, spec)


def _read(name: str, spec: str) -> ClaimSpec | Refusal:
    try:
        return parse_claim_spec(msgspec.json.decode(spec))
    except ClaimInvalid as error:
        return Refusal(
            rule="claim-malformed", reason=f"GpuClaim {name} is malformed: {error.message}", field=error.field
        )
