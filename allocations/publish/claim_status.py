"""Publish the allocations of each GpuClaim in its `status` at the API server (CLAIM-1, CLAIM-2).

Called by `allocations.tasks.publish_claims`, never in bind. Invariants: a status is written only when it differs from
what was published last, at most once a run (2 s) a claim; a claim that could not be written waits for the next run;
every `ALL_EVERY` runs all claims are compared, so a missed event loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import structlog

from allocations.selectors import claim_statuses
from audit.models import Event
from claims.kinds import CLAIM, Kind, R
from claims.mirror import mirror_known, uid_of
from claims.models import GpuClaim
from kube import crds
from kube.client import Cluster
from kube.errors import NotFoundInCluster, PermanentKubeError, TemporaryKubeError

log = structlog.get_logger(__name__)

WRITES_A_TURN = 200
OVERLAP = 500
"""Event ids may commit out of order: so many before the last one are read again."""
ALL_EVERY = 30
"""Runs from one comparison of all claims to the next."""
CHUNK = 500
FAILING_MOST = 5
"""So many namespaces that fail before any was written mean that the API server is away: the run writes no more."""


class Publisher:
    """One a process. Remembers the last event that it read, and the claims that are still to be written."""

    def __init__(self) -> None:
        self._until_all = 0
        self._event = 0
        self._waiting: dict[tuple[str, str], None] = {}

    def publish(self, *, cluster: Cluster, now: datetime) -> int:
        """Write every status that changed, a bounded number; how many.

        A namespace whose claims cannot be written for the moment waits for the next run, and delays no other.
        Raises TemporaryKubeError where nothing could be written.
        """
        everything = self._until_all == 0
        if not everything:
            self._until_all -= 1
        self._note_hints()
        written, failing = 0, dict[str, TemporaryKubeError]()
        for claims in _all_claims() if everything else self._hinted():
            statuses = claim_statuses(claims)
            for claim in claims:
                key, status = (claim.namespace, claim.name), statuses[claim.pk]
                if status == claim.published_status:
                    self._waiting.pop(key, None)
                    continue
                self._waiting.setdefault(key)
                is_away = len(failing) >= FAILING_MOST and not written
                if is_away or written >= WRITES_A_TURN or claim.namespace in failing:
                    continue
                try:
                    status_publish(CLAIM, cluster=cluster, row=claim, status=status, now=now)
                except TemporaryKubeError as error:
                    log.warning("claims.status_unwritten", claim=str(claim), error=str(error))
                    failing[claim.namespace] = error
                else:
                    written += 1
                    self._waiting.pop(key)
        if everything:
            self._until_all = ALL_EVERY - 1
        self._waiting = dict.fromkeys(sorted(self._waiting, key=lambda name: name[0] in failing))  # others go first
        if failing and not written:
            raise next(iter(failing.values()))
        return written

    def _note_hints(self) -> None:
        newest = Event.objects.order_by("-id").values_list("id", flat=True).first() or 0
        if self._event:
            hints = Event.objects.filter(id__gt=self._event - OVERLAP).exclude(claim="")
            self._waiting |= dict.fromkeys(hints.values_list("namespace", "claim").distinct())
        self._event = newest

    def _hinted(self) -> Iterator[list[GpuClaim]]:
        names = list(self._waiting)
        for start in range(0, len(names), CHUNK):
            some = names[start : start + CHUNK]
            rows = GpuClaim.objects.filter(namespace__in={one[0] for one in some}, name__in={one[1] for one in some})
            found = {(claim.namespace, claim.name): claim for claim in rows}
            for gone in set(some).difference(found):
                del self._waiting[gone]
            yield [found[name] for name in some if name in found]


def _all_claims() -> Iterator[list[GpuClaim]]:
    ids: Iterable[int] = GpuClaim.objects.order_by("id").values_list("id", flat=True)
    listed = list(ids)
    for start in range(0, len(listed), CHUNK):
        yield list(GpuClaim.objects.filter(id__in=listed[start : start + CHUNK]))


def status_publish(kind: Kind[R], *, cluster: Cluster, row: R, status: Mapping[str, object], now: datetime) -> bool:
    """Write one status and note it. False when the object is gone from the cluster, or the API server refuses it."""
    try:
        stored = crds.status_replace(cluster, kind.resource, namespace=row.namespace, name=row.name, status=status)
    except NotFoundInCluster:
        return False  # deleted: the watch brings it
    except PermanentKubeError as error:
        log.error(  # noqa: TRY400 - no traceback: the answer says it all
            "manifests.status_refused", kind=kind.name, object=str(row), error=str(error)
        )
        return False
    mirror_known(kind, stored=stored, now=now)
    rows = kind.rows.filter(uid=uid_of(stored.metadata.uid))
    return bool(rows.update(published_status=status))
