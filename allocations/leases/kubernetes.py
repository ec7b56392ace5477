"""Leases as `coordination.k8s.io/v1` objects: the locks that everybody in the cluster can see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from allocations.leases.port import LeaseTaken, LeaseView, Want
from kube import leases, shares
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster
from kube.posts import Posts

ROUNDS = 5
"""Times a lease that changed while it was being dropped is read again."""


async def take_evented(
    posts: Posts, wants: Sequence[Want], holder: str, *, namespace: str, seconds: float, before: float
) -> None:
    """Create the leases of whole devices on the event loop, all at once. Raises the error of one, when all are answered; those made stay."""
    now = datetime.now(UTC)
    made = await asyncio.gather(
        *(
            leases.create_evented(
                posts,
                namespace=namespace,
                name=want.name,
                holder=holder,
                now=now,
                node=want.node,
                device_uuid=want.device_uuid,
                seconds=seconds,
                before=before,
            )
            for want in wants
        ),
        return_exceptions=True,
    )
    for outcome in made:
        if isinstance(outcome, BaseException):
            raise outcome


class KubernetesLeases:
    """The Kubernetes implementation of `LeasePort`. Errors of `kube.errors` pass through: the caller decides."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def take(self, wants: Sequence[Want], holder: str) -> None:
        """See LeasePort."""
        now = datetime.now(UTC)
        for want in sorted(wants, key=lambda want: want.name):
            place: dict[str, Any] = {"namespace": self._namespace, "name": want.name}
            about: dict[str, Any] = {"node": want.node, "device_uuid": want.device_uuid}
            try:
                if want.whole:
                    leases.ensure(self._cluster, **place, holder=holder, now=now, **about)
                else:
                    shares.join(self._cluster, **place, sharer=holder, now=now, **about)
            except AlreadyExists as error:
                stranger = leases.find(self._cluster, **place)
                raise LeaseTaken(want, stranger.holder_identity if stranger else "somebody") from error

    def drop(self, wants: Sequence[Want], holder: str) -> None:
        """See LeasePort."""
        for want in wants:
            if want.whole:
                self._delete(want.name, holder)
            else:
                shares.leave(self._cluster, namespace=self._namespace, name=want.name, sharer=holder)

    def all(self) -> Iterator[LeaseView]:
        """See LeasePort."""
        found = leases.list_all(self._cluster, namespace=self._namespace, ours_only=True)
        yield from map(_view, sorted(found, key=lambda lease: lease.name))

    def named(self, names: Sequence[str]) -> Iterator[LeaseView]:
        """See LeasePort."""
        for name in sorted(names):
            lease = leases.find(self._cluster, namespace=self._namespace, name=name)
            if lease is not None:
                yield _view(lease)

    def _delete(self, name: str, holder: str) -> None:
        for _ in range(ROUNDS):
            lease = leases.find(self._cluster, namespace=self._namespace, name=name)
            if lease is None or lease.holder_identity != holder:
                return
            try:
                leases.delete(self._cluster, namespace=self._namespace, name=name, uid=lease.uid)
            except ConflictInCluster:
                continue
            return


def _view(lease: leases.Lease) -> LeaseView:
    return LeaseView(
        name=lease.name,
        holder_identity=lease.holder_identity,
        node=lease.node,
        device_uuid=lease.device_uuid,
        sharers=lease.sharers,
        acquired_at=None if lease.acquire_time is None else lease.acquire_time.isoformat(),
    )
