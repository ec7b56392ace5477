"""Leases as `coordination.k8s.io/v1` objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from allocations.leases.port import LeaseTaken, LeaseView, Want
from kube import leases, shares
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster

ROUNDS = 5
"""Times a lease that changes while it is dropped is read again."""


class KubernetesLeases:
    """The Kubernetes implementation of `LeasePort`. Errors of `kube.errors` pass through: the caller decides."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def take(self, wants: Sequence[Want], holder: str, *, now: datetime) -> None:
        """See LeasePort."""
        self._cluster.run(self.atake(wants, holder, now=now))

    def drop(self, wants: Sequence[Want], holder: str) -> None:
        """See LeasePort."""
        self._cluster.run(self.adrop(wants, holder))

    async def atake(
        self,
        wants: Sequence[Want],
        holder: str,
        *,
        now: datetime,
        timeout: float | None = None,  # noqa: ASYNC109 - the transport bounds each part of a request by it
    ) -> None:
        """`take` on an event loop, all at once; raises after all answers, and leaves those taken to `drop`."""
        answers = await asyncio.gather(
            *(self._take(want, holder, now, timeout) for want in wants), return_exceptions=True
        )
        for error in answers:
            if isinstance(error, BaseException):
                raise error

    async def _take(self, want: Want, holder: str, now: datetime, seconds: float | None) -> None:
        place: dict[str, Any] = {"namespace": self._namespace, "name": want.name, "timeout": seconds}
        about: dict[str, Any] = {"node": want.node, "device_uuid": want.device_uuid, "now": now}
        try:
            if want.whole:
                await leases.ensure(self._cluster, **place, **about, holder=holder)
            else:
                await shares.join(self._cluster, **place, **about, sharer=holder)
        except AlreadyExists as error:
            found = await leases.find(self._cluster, **place)
            raise LeaseTaken(want, found.holder_identity if found else leases.UNNAMED_HOLDER) from error

    async def adrop(self, wants: Sequence[Want], holder: str) -> None:
        """`drop` on an event loop."""
        for want in wants:
            if want.whole:
                await self._delete(want.name, holder)
            else:
                await shares.leave(self._cluster, namespace=self._namespace, name=want.name, sharer=holder)

    def all(self) -> Iterator[LeaseView]:
        """See LeasePort."""
        found = leases.list_all(self._cluster, namespace=self._namespace, ours_only=True)
        yield from map(_view, sorted(found, key=lambda lease: lease.name))

    def named(self, names: Sequence[str]) -> Iterator[LeaseView]:
        """See LeasePort."""
        for name in sorted(names):
            lease = self._cluster.run(leases.find(self._cluster, namespace=self._namespace, name=name))
            if lease is not None:
                yield _view(lease)

    async def _delete(self, name: str, holder: str) -> None:
        for _ in range(ROUNDS):
            lease = await leases.find(self._cluster, namespace=self._namespace, name=name)
            if lease is None or lease.holder_identity != holder:
                return
            try:
                await leases.delete(self._cluster, namespace=self._namespace, name=name, uid=lease.uid)
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
