"""Leases compared with the ledger (LEASE-1, LEASE-6): missing ones taken again, orphans deleted, strangers noted.

Called by `allocations.reconcile.run`. Kept true: a lease is judged by the ledger as it is after the lease was
seen (a bind has its row before its leases); what a running pod holds is never deleted; a stranger's lease is
never touched, it marks the device taken for as long as it is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
from django.conf import settings

from allocations import ledger
from allocations.bindings import wants_of
from allocations.choices import State
from allocations.leases.port import SHARED_HOLDER, LeaseTaken, Want, lease_name
from allocations.ledger.strangers import stranger_set
from allocations.outside import Outside
from allocations.reconcile.report import ACTOR, Difference
from allocations.reconcile.rows import LeasedDevice, Row, devices_by_lease, live_holders, live_rows
from audit.announce import announce
from kube import leases, shares
from kube.client import Cluster
from kube.errors import ConflictInCluster, KubeError, TemporaryKubeError
from kube.leases import Lease
from nodes.newcomers import UNREAD

log = structlog.get_logger(__name__)

GRACE = timedelta(seconds=60)
"""An orphan younger than this may belong to a bind that is being undone at this moment."""


@dataclass(slots=True)
class Leased:
    """What was done about leases, by name."""

    taken: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


def compare_leases(
    *, before: Sequence[Row], seen: Sequence[Lease], running: Iterable[str], world: Outside, now: datetime
) -> Leased:
    """`before`: the ledger as read before `seen` was listed. `running`: UIDs of pods that have a node and have not ended.

    Raises TemporaryKubeError when the API server goes away meanwhile; what is left waits for the next turn.
    """
    done = Leased()
    by_name = {lease.name: lease for lease in seen}
    for row in before:
        if row.state is State.BOUND and not _complete(row, by_name):
            _take_again(row, world, done)
    wanted = _wanted(live_rows())
    devices = devices_by_lease()
    if world.cluster is not None:
        judge = _Judge(world.cluster, wanted, frozenset(running), live_holders(_holders(seen)), devices, done, now)
        strangers = {lease.name: holder for lease in seen if (holder := judge.stranger(lease))}
        _note_strangers(judge, {name: (strangers.get(name, ""), device) for name, device in devices.items()})
    return done


def _holders(seen: Sequence[Lease]) -> Iterable[str]:
    for lease in seen:
        yield from lease.sharers if lease.shared else (lease.holder_identity,)


def _wanted(rows: Sequence[Row]) -> dict[str, dict[str, bool]]:
    """Lease name → holder identity → whole."""
    wanted: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in rows:
        for grant in row.grants:
            wanted[lease_name(grant.type, row.node, grant.minor)][row.holder] = grant.whole
    return wanted


def _complete(row: Row, by_name: Mapping[str, Lease]) -> bool:
    """Whether every lease of the row is there and says so."""
    for grant in row.grants:
        lease = by_name.get(lease_name(grant.type, row.node, grant.minor))
        if lease is None:
            return False
        if grant.whole and lease.holder_identity != row.holder:
            return False
        if not grant.whole and row.holder not in lease.sharers:
            return False
    return True


def take_leases(live: ledger.Live, world: Outside, done: Leased) -> None:
    """Take what a bound allocation lacks, one by one: what a stranger has is reported, the rest is still taken."""
    taken: list[Want] = []
    for want in wants_of(live):
        try:
            world.leases.take([want], live.holder.identity)
        except LeaseTaken as stranger:
            done.differences.append(
                Difference(
                    f"lease {want.name} is held by somebody else, while {live.holder.label} runs with the device",
                    namespace=live.holder.namespace,
                    name=live.holder.pod_name,
                    node=live.node,
                    allocation_id=live.id,
                    other=stranger.holder,
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
        world.leases.drop(taken, live.holder.identity)  # released while we took them
        return
    done.taken += [want.name for want in taken]


def _take_again(row: Row, world: Outside, done: Leased) -> None:
    live = ledger.read_live(row.id)
    if live is not None and live.state is State.BOUND:
        take_leases(live, world, done)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Decides what each lease is: expected, an orphan of ours, or a stranger's."""

    cluster: Cluster
    wanted: Mapping[str, Mapping[str, bool]]
    running: frozenset[str]
    live: set[str]
    devices: Mapping[str, LeasedDevice]
    done: Leased
    now: datetime

    def stranger(self, lease: Lease) -> str:
        """Who keeps the device from us by this lease, empty where nobody does. Orphans are deleted on the way."""
        holders = self.wanted.get(lease.name, {})
        if lease.shared:
            return self._shared(lease, holders)
        if lease.holder_identity in holders:
            return ""
        if not lease.ours:
            return lease.holder_identity or "somebody"
        if lease.holder_identity in self.live:
            return ""  # being taken or dropped at this moment
        if self._runs(lease.holder_identity):
            return lease.holder_identity
        if self._young(lease):
            known = self.devices.get(lease.name)
            return known.stranger if known else ""
        return "" if self._delete(lease) else lease.holder_identity

    def _shared(self, lease: Lease, holders: Mapping[str, bool]) -> str:
        if lease.damaged:
            self.done.differences.append(
                Difference(f"lease {lease.name}: the list of sharers cannot be read", name=lease.name, node=lease.node)
            )
            return "" if holders else SHARED_HOLDER
        strange = [one for one in lease.sharers if one not in holders and one not in self.live]
        gone = [one for one in strange if not self._runs(one)]
        if not self._young(lease):
            for sharer in gone:
                shares.leave(self.cluster, namespace=lease.namespace, name=lease.name, sharer=sharer)
                self.done.deleted.append(f"{lease.name} ({sharer})")
        if not lease.sharers and not holders and not self._young(lease):
            return "" if self._delete(lease) else SHARED_HOLDER
        left = [one for one in strange if one not in gone]
        return left[0] if left else ""

    def _runs(self, holder: str) -> bool:
        return holder.rpartition("/")[2] in self.running

    def _young(self, lease: Lease) -> bool:
        return lease.acquire_time is not None and self.now - lease.acquire_time.astimezone(UTC) < GRACE

    def still(self, name: str, holder: str) -> bool:
        """Whether the lease is there at this moment, in the same hands: before a device is taken out of use."""
        lease = leases.find(self.cluster, namespace=settings.GPUPLANE_NAMESPACE, name=name)
        return lease is not None and (lease.holder_identity == holder or lease.shared)

    def _delete(self, lease: Lease) -> bool:
        try:
            leases.delete(
                self.cluster,
                namespace=lease.namespace,
                name=lease.name,
                uid=lease.uid,
                resource_version=lease.resource_version,
            )
        except ConflictInCluster:
            return False  # somebody else's by now: the next turn sees whose
        self.done.deleted.append(lease.name)
        return True


def _note_strangers(judge: _Judge, found: Mapping[str, tuple[str, LeasedDevice]]) -> None:
    for name, (holder, device) in found.items():
        if device.stranger == holder[:300] or (holder and not judge.still(name, holder)):
            continue
        if device.stranger == UNREAD and not holder:
            continue  # opened by `allocations.reconcile.newcomers`
        if stranger_set(device_uuid=device.uuid, stranger=holder, now=judge.now, actor=ACTOR):
            (judge.done.marked if holder else judge.done.cleared).append(name)
            if not holder:
                announce(node=device.node)


def compare_rows(*, world: Outside, now: datetime) -> Leased:
    """Without a cluster: leases of the database whose holders have no live allocation are dropped.

    A device that such a lease kept out of use comes back once the lease is gone.
    """
    done = Leased()
    found = [view for view in world.leases.all() if _old(view.acquired_at, now)]
    live = live_holders(holder for view in found for holder in (view.sharers or (view.holder_identity,)))
    for view in found:
        for holder in view.sharers or (view.holder_identity,):
            if holder not in live and holder != SHARED_HOLDER:
                want = Want(view.name, view.node, view.device_uuid, whole=not view.sharers)
                world.leases.drop([want], holder)
                done.deleted.append(view.name)
    kept_out = devices_by_lease(kept_out=True)
    there = {view.name for view in world.leases.all()} if kept_out else set()
    for name, device in kept_out.items():
        if name not in there and stranger_set(device_uuid=device.uuid, stranger="", now=now, actor=ACTOR):
            done.cleared.append(name)
    return done


def _old(acquired_at: str | None, now: datetime) -> bool:
    return acquired_at is None or now - datetime.fromisoformat(acquired_at) >= GRACE
