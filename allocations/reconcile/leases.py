"""Leases compared with the ledger (LEASE-1, LEASE-6): missing ones taken, orphans deleted, external holders noted.

Called by `allocations.reconcile.run`. Invariants: a lease is judged by the ledger as it is after the lease was read (a
bind has its row before its leases) and as it was before (a release meanwhile makes nobody a stranger); what a running
pod holds is never deleted; a lease of somebody else is never touched, it marks the device taken for as long as it is
there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import structlog
from django.conf import settings

from allocations import ledger
from allocations.backends import Backends
from allocations.choices import State
from allocations.leases.port import SHARED_HOLDER, LeaseTaken, Want
from allocations.ledger.external_holders import external_holder_set
from allocations.reconcile.report import ACTOR, Difference, Found, Reconciled
from allocations.reconcile.rows import LeasedDevice, Row, devices_by_lease, live_holders, live_rows
from allocations.scheduling.bindings import leases_needed
from audit.requeue_notify import announce
from kube import leases, shares
from kube.client import Cluster
from kube.errors import ConflictInCluster, KubeError, TemporaryKubeError, Unintelligible
from kube.leases import Lease
from nodes.unverified_devices import UNREAD

log = structlog.get_logger(__name__)

GRACE = timedelta(seconds=60)
"""A younger orphan may belong to a bind that is being undone at this moment."""


def compare_leases(
    *, before: Sequence[Row], seen: Sequence[Lease], running: Iterable[str], backends: Backends, now: datetime
) -> Found:
    """`before`: the ledger as read before `seen` was listed. `running`: UIDs of pods that have a node and have not
    ended.

    Raises TemporaryKubeError when the API server goes away meanwhile; what is left waits for the next comparison.
    """
    by_name = {lease.name: lease for lease in seen}
    found = [
        take_leases(live, backends, now)
        for row in before
        if row.state is State.BOUND
        and not _complete(row, by_name)
        and (live := ledger.read_live(row.id)) is not None
        and live.state is State.BOUND
    ]
    wanted: dict[str, set[str]] = defaultdict(set)
    as_read = {row.id: row.changed_at for row in before if row.state is State.BOUND}
    settled: set[str] = set()
    for row in live_rows():
        if as_read.get(row.id) == row.changed_at:
            settled.add(row.holder)
        for name in row.leases:
            wanted[name].add(row.holder)
    devices = devices_by_lease()
    if backends.cluster is None:
        return Found.total(found)
    # and those that were live before the leases were read: what was released since had its leases then
    known = live_holders(_holders(seen)) | {row.holder for row in before}
    judge = _Judge(backends.cluster, wanted, frozenset(running), known, devices, now, frozenset(settled))
    verdicts = {lease.name: judge.judge(lease) for lease in seen}
    found += [verdict.done for verdict in verdicts.values()]
    holders = {name: (verdicts[name].holder if name in verdicts else "", device) for name, device in devices.items()}
    return Found.total([*found, _note_holders(judge, holders)])


def _holders(seen: Sequence[Lease]) -> Iterable[str]:
    for lease in seen:
        yield from lease.sharers if lease.shared else (lease.holder_identity,)


def _complete(row: Row, by_name: Mapping[str, Lease]) -> bool:
    """Whether every lease of the row is there and names its holder."""
    for name, whole in row.leases.items():
        lease = by_name.get(name)
        if lease is None or row.holder not in ((lease.holder_identity,) if whole else lease.sharers):
            return False
    return True


def take_leases(live: ledger.Live, backends: Backends, now: datetime) -> Found:
    """Take what a bound allocation lacks, one by one; a lease that somebody else has is a difference."""
    taken: list[Want] = []
    differences: list[Difference] = []
    for want in leases_needed(live):
        try:
            backends.leases.take([want], live.holder.identity, now=now)
        except LeaseTaken as error:
            differences.append(
                Difference(
                    f"lease {want.name} is held by somebody else, while {live.holder.label} runs with the device",
                    namespace=live.holder.namespace,
                    name=live.holder.pod_name,
                    node=live.node,
                    allocation_id=live.id,
                    other=error.holder,
                )
            )
        except TemporaryKubeError:
            raise
        except KubeError as error:
            log.warning("reconcile.lease_not_taken", lease=want.name, error=str(error))
        else:
            taken.append(want)
    now_live = ledger.read_live(live.id)
    if now_live is None or now_live.state is not State.BOUND:
        backends.leases.drop(taken, live.holder.identity)  # released while we took them
        taken = []
    return Found(_done(taken=[want.name for want in taken]), differences)


def _done(
    *,
    taken: Sequence[str] = (),
    deleted: Sequence[str] = (),
    marked: Sequence[str] = (),
    cleared: Sequence[str] = (),
) -> Reconciled:
    """What was done, by names of leases."""
    lines = (
        *(f"took lease {name}" for name in taken),
        *(f"deleted lease {name}" for name in deleted),
        *(f"a stranger holds lease {name}" for name in marked),
        *(f"a stranger let go of lease {name}" for name in cleared),
    )
    return Reconciled(
        leases_taken=len(taken),
        leases_deleted=len(deleted),
        strangers_marked=len(marked),
        strangers_cleared=len(cleared),
        lines=lines,
    )


class _Verdict(NamedTuple):
    """`holder`: who keeps the device from us by the lease, empty for nobody. `done`: what was done about the lease."""

    holder: str = ""
    done: Found = Found()


_OURS: Final = _Verdict()


@dataclass(frozen=True, slots=True)
class _Judge:
    """Decides what each lease is: expected, an orphan of ours, which is deleted, or somebody else's."""

    cluster: Cluster
    wanted: Mapping[str, Collection[str]]
    """Lease name → the holders that it is to have."""
    running: frozenset[str]
    live: set[str]
    devices: Mapping[str, LeasedDevice]
    now: datetime
    settled: frozenset[str]
    """Live holders whose row has not changed since before the leases were read: what it lacks by then was dropped, or
    the drop was cut off."""

    def judge(self, lease: Lease) -> _Verdict:
        """Judge the lease, and delete an orphan."""
        holders = self.wanted.get(lease.name, ())
        if lease.shared:
            return self._shared(lease, holders)
        if lease.holder_identity in holders:
            return _OURS
        if not lease.ours:
            return _Verdict(lease.holder_identity)
        if lease.holder_identity in self.settled and not self._young(lease):
            return self._delete(lease, otherwise=lease.holder_identity)  # a drop that was cut off
        if lease.holder_identity in self.live:
            return _OURS  # being taken or dropped at this moment
        if self._runs(lease.holder_identity):
            return _Verdict(lease.holder_identity)
        if self._young(lease):
            known = self.devices.get(lease.name)
            return _Verdict(known.stranger) if known else _OURS
        return self._delete(lease, otherwise=lease.holder_identity)

    def _shared(self, lease: Lease, holders: Collection[str]) -> _Verdict:
        if lease.damaged:
            message = f"lease {lease.name}: the list of sharers cannot be read"
            damaged = Difference(message, name=lease.name, node=lease.node)
            return _Verdict("" if holders else SHARED_HOLDER, Found(differences=(damaged,)))
        if not lease.sharers and not holders and not self._young(lease):
            return self._delete(lease, otherwise=SHARED_HOLDER)
        others = [one for one in lease.sharers if one not in holders and (one not in self.live or one in self.settled)]
        leaving = [] if self._young(lease) else [one for one in others if one in self.settled or not self._runs(one)]
        for sharer in leaving:
            leave = shares.leave(self.cluster, namespace=lease.namespace, name=lease.name, sharer=sharer)
            self.cluster.run(leave)
        running = next((one for one in others if one not in leaving and self._runs(one)), "")
        return _Verdict(running, Found(_done(deleted=[f"{lease.name} ({sharer})" for sharer in leaving])))

    def _runs(self, holder: str) -> bool:
        return holder.rpartition("/")[2] in self.running

    def _young(self, lease: Lease) -> bool:
        return lease.acquire_time is not None and self.now - lease.acquire_time.astimezone(UTC) < GRACE

    def is_held(self, name: str, holder: str) -> bool:
        """Whether the lease is there at this moment, with the same holder: before a device is taken out of use."""
        try:
            lease = self.cluster.run(leases.find(self.cluster, namespace=settings.GPUPLANE_NAMESPACE, name=name))
        except Unintelligible:
            return holder == leases.UNNAMED_HOLDER  # as it was listed
        return lease is not None and (lease.holder_identity == holder or lease.shared)

    def _delete(self, lease: Lease, *, otherwise: str) -> _Verdict:
        """Delete the lease; `otherwise`: its holder where that fails."""
        deletion = leases.delete(
            self.cluster,
            namespace=lease.namespace,
            name=lease.name,
            uid=lease.uid,
            resource_version=lease.resource_version,
        )
        try:
            self.cluster.run(deletion)
        except ConflictInCluster:
            return _Verdict(otherwise)  # somebody else's by now: the next comparison sees whose
        return _Verdict(done=Found(_done(deleted=[lease.name])))


def _note_holders(judge: _Judge, found: Mapping[str, tuple[str, LeasedDevice]]) -> Found:
    """Write external holders of devices. `found`: by lease name, the holder and the device."""
    marked: list[str] = []
    cleared: list[str] = []
    for name, (holder, device) in found.items():
        if device.stranger == holder[:300] or (holder and not judge.is_held(name, holder)):
            continue
        if device.stranger == UNREAD and not holder:
            continue  # opened by `allocations.reconcile.unverified_devices`
        if external_holder_set(device.uuid, holder, now=judge.now, actor=ACTOR):
            (marked if holder else cleared).append(name)
            if not holder:
                announce(node=device.node)
    return Found(_done(marked=marked, cleared=cleared))


def compare_rows(*, backends: Backends, now: datetime) -> Found:
    """Without a cluster: leases of the database whose holders have no live allocation are dropped.

    A device that such a lease kept out of use comes back once the lease is gone.
    """
    deleted: list[str] = []
    found = [view for view in backends.leases.all() if _old(view.acquired_at, now)]
    live = live_holders(holder for view in found for holder in (view.sharers or (view.holder_identity,)))
    for view in found:
        for holder in view.sharers or (view.holder_identity,):
            if holder not in live and holder != SHARED_HOLDER:
                want = Want(view.name, view.node, view.device_uuid, whole=not view.sharers)
                backends.leases.drop([want], holder)
                deleted.append(view.name)
    kept_out = devices_by_lease(kept_out=True)
    there = {view.name for view in backends.leases.all()} if kept_out else set()
    cleared = [
        name
        for name, device in kept_out.items()
        if name not in there and external_holder_set(device.uuid, "", now=now, actor=ACTOR)
    ]
    return Found(_done(deleted=deleted, cleared=cleared))


def _old(acquired_at: str | None, now: datetime) -> bool:
    return acquired_at is None or now - datetime.fromisoformat(acquired_at) >= GRACE
