"""Finds a pod's GpuClaim on the hot path: one query, and each spec is parsed once.

With a cluster a miss is read from the API server, since the claim may be too new for the watch. If that does not
answer, the refusal says so instead of calling the claim missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import structlog
from django.conf import settings

from claims.dialects.claim_manifest import DEFAULT_NAMESPACE, ClaimSpec, malformed_claim, parse_claim_spec
from claims.dialects.request import DeviceRequest, Parsed, Refusal
from claims.kinds import CLAIM
from claims.manifest_metadata import ManifestInvalid
from claims.mirror import mirror_answer
from kube import crds
from kube.errors import KubeError, NotFoundInCluster
from kube.objects import Pod
from kube.shared import shared_cluster
from storage.clock import database_now
from storage.cursors import Query, rows_of

READ_SECONDS = 2.0
CACHED_MOST = 4096
CACHED_LONGEST = 1024
"""Most characters of a cached spec: with its request some 4 KB, so 16 MB in all. A claim for one model has 80."""

_CLAIM_OF_NAME: Final = "SELECT id, spec FROM claims_gpuclaim WHERE namespace = %s AND name = %s"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FoundClaim:
    """`claim_id`: row of the claim, None where there is none; `spec`: what `FindClaim` answers."""

    claim_id: int | None
    spec: ClaimSpec | Refusal | None

    @property
    def gang(self) -> str:
        """The gang that the claim names, empty without one."""
        return self.spec.gang_ref if isinstance(self.spec, ClaimSpec) else ""


NO_CLAIM: Final = FoundClaim(None, None)


class ClaimFinder:
    """The `FindClaim` of one or of several requests: each claim is looked up once. `rows`: runs the query for it.

    `mirrored`: claims that the watch has not brought yet count as missing.
    """

    def __init__(self, rows: Callable[[Query], Sequence[Any]] = rows_of, *, mirrored: bool = False) -> None:
        self._rows = rows
        self._reads_through = bool(settings.GPUPLANE_KUBECONFIG) and not mirrored
        self._found: dict[tuple[str, str], FoundClaim] = {}

    def __call__(self, namespace: str, name: str) -> ClaimSpec | Refusal | None:
        """The claim's spec, a refusal if the stored one is malformed, or None."""
        return self.find(namespace, name).spec

    def find(self, namespace: str, name: str) -> FoundClaim:
        """The claim."""
        found = self._found.get((namespace, name))
        if found is None:
            found = self._found[namespace, name] = self._look_up(namespace, name)
        return found

    def of(self, pod: Pod, parsed: Parsed) -> FoundClaim:
        """The claim of a pod's request."""
        if not isinstance(parsed, DeviceRequest) or not parsed.claim:
            return NO_CLAIM
        return self.find(pod.metadata.namespace or DEFAULT_NAMESPACE, parsed.claim)

    def _look_up(self, namespace: str, name: str) -> FoundClaim:
        found = self._rows(Query(_CLAIM_OF_NAME, [namespace, name]))
        if found:
            claim_id, spec = found[0]
            return FoundClaim(claim_id, _parsed(name, spec))
        return _read_through(namespace, name) if self._reads_through else NO_CLAIM


def _read_through(namespace: str, name: str) -> FoundClaim:
    cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
    if cluster is None:
        return NO_CLAIM
    try:
        stored = crds.get(cluster, CLAIM.resource, namespace=namespace, name=name, timeout=READ_SECONDS)
    except NotFoundInCluster:
        return NO_CLAIM
    except (KubeError, ValueError) as error:
        log.warning("claims.unread", namespace=namespace, name=name, error=str(error))
        reason = f"whether GpuClaim {name} exists cannot be read from the API server now; it is asked again"
        return FoundClaim(None, Refusal(rule="claim-unread", reason=reason))
    claim = mirror_answer(CLAIM, cluster, stored=stored, now=database_now(), timeout=READ_SECONDS)
    if not CLAIM.rows.filter(pk=claim.pk).exists():
        return NO_CLAIM  # deleted meanwhile
    return FoundClaim(claim.pk, _parsed(name, msgspec.json.encode(claim.spec).decode()))


def _parsed(name: str, spec: str) -> ClaimSpec | Refusal:
    """The parsed spec. Long ones are not cached, so that the cache is bounded in bytes."""
    return _cached(name, spec) if len(spec) <= CACHED_LONGEST else _parse(name, spec)


def _parse(name: str, spec: str) -> ClaimSpec | Refusal:
    try:
        return parse_claim_spec(msgspec.json.decode(spec))
    except ManifestInvalid as error:
        return malformed_claim(name, error)


_cached = lru_cache(maxsize=CACHED_MOST)(_parse)
