"""Leases as rows, for use without Kubernetes: the same names, holders and rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from allocations.leases.port import SHARED_HOLDER, LeaseTaken, LeaseView, Want
from allocations.models import Lease
from storage.columns import document
from storage.cursors import hot_cursor, moment
from storage.transactions import atomic_retry

ROUNDS = 20
"""Times a lease may be deleted between insert and select before the device counts as taken."""
_COLUMNS = "name, holder_identity, sharers, node, device_uuid, acquired_at, version"


class DatabaseLeases:
    """The database implementation of `LeasePort`. Each call is one transaction: all or nothing."""

    @atomic_retry
    def take(self, wants: Sequence[Want], holder: str, *, now: datetime) -> None:
        """See LeasePort."""
        with hot_cursor() as cursor:
            for want in sorted(wants, key=lambda want: want.name):
                _take_one(cursor, want, holder, moment(now))

    @atomic_retry
    def drop(self, wants: Sequence[Want], holder: str) -> None:
        """See LeasePort."""
        whole = [want.name for want in wants if want.whole]
        if whole:
            Lease.objects.filter(name__in=whole, holder_identity=holder).delete()
        for want in sorted((want for want in wants if not want.whole), key=lambda want: want.name):
            lease = Lease.objects.select_for_update().filter(name=want.name, holder_identity=SHARED_HOLDER).first()
            if lease is None or holder not in lease.sharers:
                continue
            left = [sharer for sharer in lease.sharers if sharer != holder]
            if left:
                Lease.objects.filter(pk=lease.pk).update(sharers=left, version=lease.version + 1)
            else:
                lease.delete()

    def all(self) -> Iterator[LeaseView]:
        """See LeasePort."""
        yield from map(_view, Lease.objects.order_by("name").iterator())

    def named(self, names: Sequence[str]) -> Iterator[LeaseView]:
        """See LeasePort."""
        yield from map(_view, Lease.objects.filter(name__in=names).order_by("name"))


def _view(lease: Lease) -> LeaseView:
    return LeaseView(
        name=lease.name,
        holder_identity=lease.holder_identity,
        node=lease.node,
        device_uuid=lease.device_uuid,
        sharers=tuple(lease.sharers),
        acquired_at=lease.acquired_at.isoformat(),
    )


def _take_one(cursor: Any, want: Want, holder: str, now: Any) -> None:
    """Create the lease or join it; its last holder may leave between the two."""
    identity, sharers = (holder, []) if want.whole else (SHARED_HOLDER, [holder])
    for _ in range(ROUNDS):
        cursor.execute(
            f"INSERT INTO allocations_lease ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, 1) "  # noqa: S608 - constants
            "ON CONFLICT (name) DO NOTHING",
            [want.name, identity, document(sharers), want.node, want.device_uuid, now],
        )
        if cursor.rowcount == 1:
            return
        lease = Lease.objects.select_for_update().filter(name=want.name).first()
        if lease is not None:
            _join(lease, want, holder)
            return
    raise LeaseTaken(want, "holders that come and go")


def _join(lease: Lease, want: Want, holder: str) -> None:
    """Join a lease that exists. Raises LeaseTaken for one of somebody else."""
    if lease.holder_identity != (holder if want.whole else SHARED_HOLDER):
        raise LeaseTaken(want, lease.holder_identity)
    if not want.whole and holder not in lease.sharers:
        Lease.objects.filter(pk=lease.pk).update(sharers=[*lease.sharers, holder], version=lease.version + 1)
