"""Reads of the ledger: live allocations with their grants, and devices by node or by the names of their leases.

Called at the start of a comparison, before the cluster is read, and again where only the present counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from allocations.attempts import Attempt, HoldRecord
from allocations.choices import LIVE, State
from allocations.leases.port import lease_name
from allocations.models import Allocation, AllocationDevice
from allocations.reconcile.report import ACTOR
from nodes.choices import Presence
from nodes.models import Device


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One device of an allocation."""

    uuid: str
    type: str
    minor: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One live allocation as it was when the ledger was read; unchanged for as long as `changed_at` is."""

    id: UUID
    state: State
    node: str
    namespace: str
    pod_name: str
    pod_uid: str
    holder: str
    changed_at: datetime
    adopted: bool
    """Its pod ran before it had the row, and may never have carried an annotation."""
    grants: tuple[GrantRow, ...]
    held: HoldRecord
    """The attempt of the scheduler that it is for, where it is a hold."""
    resized: bool = False
    """Its amounts changed after the Binding, and so have to the pod's annotations."""

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else self.holder

    @property
    def leases(self) -> dict[str, bool]:
        """Names of its leases → whether they are of whole devices."""
        return {lease_name(grant.type, self.node, grant.minor): grant.whole for grant in self.grants}


_COLUMNS = (
    *("id", "state", "node__name", "namespace", "pod_name", "pod_uid", "holder", "changed_at", "created_by"),
    "request__resized",
)
_ATTEMPT = ("attempt_version", "failure_seen", "attempt_number", "failure_owed", "failure_credited")


def live_rows(*, pod_uid: str = "") -> list[Row]:
    """Every live allocation, or that of one pod. Two queries."""
    chosen = Allocation.objects.filter(state__in=LIVE)
    granted = AllocationDevice.objects.filter(live=True)
    if pod_uid:
        chosen, granted = chosen.filter(pod_uid=pod_uid), granted.filter(allocation__pod_uid=pod_uid)
    found = list(chosen.order_by("created_at").values_list(*_COLUMNS, *_ATTEMPT))
    if not found:
        return []
    grants: dict[UUID, list[GrantRow]] = defaultdict(list)
    for allocation_id, uuid, kind, minor, whole in granted.order_by("type", "minor").values_list(
        "allocation_id", "uuid", "type", "minor", "whole"
    ):
        grants[allocation_id].append(GrantRow(uuid, kind, minor, whole))
    return [_row(columns, tuple(grants[columns[0]])) for columns in found]


def _row(columns: tuple[Any, ...], grants: tuple[GrantRow, ...]) -> Row:
    id_, state, node, namespace, pod_name, pod_uid, holder, changed_at, by, resized, *attempt = columns
    version, failure, *rest = attempt
    held = HoldRecord(Attempt(version, failure), *rest)
    adopted = by == ACTOR
    row = Row(id_, State(state), node, namespace, pod_name, pod_uid, holder, changed_at, adopted, grants, held)
    return replace(row, resized=True) if resized else row


def devices_by_node(nodes: Collection[str]) -> dict[str, list[Device]]:
    """Node → its devices by type and minor, removed ones left out; an empty list for a node without any."""
    found: dict[str, list[Device]] = {name: [] for name in nodes}
    rows = Device.objects.filter(node__name__in=nodes).exclude(presence=Presence.REMOVED).order_by("type", "minor")
    for device in rows.select_related("node").defer("node__links", "node__disputed"):
        found[device.node.name].append(device)
    return found


@dataclass(frozen=True, slots=True)
class LeasedDevice:
    """A device as leases name it; `stranger`: its external holder in the ledger."""

    uuid: str
    node: str
    stranger: str


def devices_by_lease(*, kept_out: bool = False) -> dict[str, LeasedDevice]:
    """Lease name → device, over the whole fleet; `kept_out`: only those with an external holder."""
    devices = Device.objects.exclude(presence=Presence.REMOVED)
    if kept_out:
        devices = devices.exclude(stranger="")
    rows = devices.values_list("type", "node__name", "minor", "uuid", "stranger")
    return {lease_name(kind, node, minor): LeasedDevice(uuid, node, holder) for kind, node, minor, uuid, holder in rows}


def live_holders(holders: Iterable[str]) -> set[str]:
    """Those of these holder identities that have a live allocation."""
    wanted = sorted(set(holders))
    found: set[str] = set()
    for start in range(0, len(wanted), 500):
        some = Allocation.objects.filter(holder__in=wanted[start : start + 500], state__in=LIVE)
        found.update(some.values_list("holder", flat=True))
    return found
