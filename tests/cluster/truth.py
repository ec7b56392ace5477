"""What there is, read from outside: the ledger by plain SQL, pods, Leases and nodes from the API server.

Nothing of gpuplane's own code takes part in the reading, so that no mistake there can hide itself.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.gpuplane import Gpuplane
from tests.cluster.controlplane.stack import Stack

LIVE_STATES = ("held", "reserved", "bound", "releasing")
_DEVICES = (
    "SELECT d.id, n.name, d.type, d.minor, d.uuid, d.memory_bytes, d.core_used, d.memory_used, d.presence, d.stranger, "
    "d.gpu_group FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id"
)
_ALLOCATIONS = (
    "SELECT a.id, a.state, a.namespace, a.pod_name, a.pod_uid, a.holder, n.name "
    "FROM allocations_allocation a JOIN nodes_node n ON n.id = a.node_id "
    "WHERE a.state IN ('held', 'reserved', 'bound', 'releasing')"
)
_GROUPS = (
    "SELECT g.name, n.name, g.state, g.gpus, g.shared, g.uuids, g.pod_namespace, g.pod_name, g.pod_uid "
    "FROM allocations_gpugroup g JOIN nodes_node n ON n.id = g.node_id WHERE g.state <> 'gone'"
)
_GRANTS = (
    "SELECT allocation_id, device_id, type, minor, uuid, core_percent, memory_bytes, whole, live FROM"
    " allocations_allocationdevice"
)


@dataclass(frozen=True)
class DeviceRow:
    """A row of the ledger's devices."""

    id: int
    node: str
    type: str
    minor: int
    uuid: str
    memory_bytes: int
    core_used: int
    memory_used: int
    presence: str = "present"
    stranger: str = ""
    group: str = ""
    """The group whose reservation pod has it, or is to have it."""

    @property
    def label(self) -> str:
        """For sentences."""
        return f"{self.type} {self.minor} of {self.node}"

    @property
    def lease(self) -> str:
        """The name of its Lease."""
        return f"{self.type}-{self.node}-{self.minor}"


@dataclass(frozen=True)
class Grant:
    """One device, or a share of it, of a live allocation."""

    device: int
    type: str
    minor: int
    uuid: str
    core_percent: int
    memory_bytes: int
    whole: bool


@dataclass(frozen=True)
class AllocationRow:
    """A live row of the ledger."""

    id: str
    state: str
    namespace: str
    pod_name: str
    pod_uid: str
    holder: str
    node: str
    grants: tuple[Grant, ...]

    @property
    def label(self) -> str:
        """For sentences."""
        return f"{self.namespace}/{self.pod_name} ({self.state})"


@dataclass(frozen=True)
class GroupRow:
    """A group of GPUs that is not gone: `uuids` are what its reservation pod reported, none before."""

    name: str
    node: str
    state: str
    gpus: int
    shared: bool
    uuids: tuple[str, ...]
    pod_namespace: str
    pod_name: str
    pod_uid: str

    @property
    def label(self) -> str:
        """For sentences."""
        return f"group {self.name} of {self.node} ({self.state})"


@dataclass(frozen=True)
class PodView:
    """A pod as the API server shows it."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    scheduler: str
    annotations: dict[str, str]
    asks: bool
    """Whether it asks for devices, by annotation or by resource name."""
    scheduled: str = ""
    """Status, reason and message of the condition PodScheduled, joined; empty where there is none."""
    labels: dict[str, str] = field(default_factory=dict)
    deleted: bool = False

    @property
    def label(self) -> str:
        """For sentences."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Its devices are free again."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True)
class LeaseView:
    """A Lease of gpuplane's namespace that stands for a device."""

    name: str
    holder: str
    sharers: tuple[str, ...] = ()
    ours: bool = True


@dataclass
class Truth:
    """Everything, at about one moment. `orphans`: grants that live on in an allocation that has ended."""

    devices: dict[int, DeviceRow] = field(default_factory=dict)
    allocations: list[AllocationRow] = field(default_factory=list)
    orphans: int = 0
    pods: dict[str, PodView] = field(default_factory=dict)
    leases: dict[str, LeaseView] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    groups: list[GroupRow] = field(default_factory=list)


def read(stack: Stack) -> Truth:
    """All of it. The cluster is read before and after the ledger is: see `settled` for how moving things are told from
    wrong ones.
    """
    truth = Truth()
    devices, allocations, grants, groups = select(stack.gpuplane, _DEVICES, _ALLOCATIONS, _GRANTS, _GROUPS)
    truth.groups = [_group_row(row) for row in groups]
    truth.devices = {row[0]: DeviceRow(*row) for row in devices}
    held: dict[str, list[Grant]] = {}
    live = {str(row[0]) for row in allocations}
    for allocation, device, kind, minor, uuid, core, memory, whole, alive in grants:
        if not alive:
            continue
        if str(allocation) not in live:
            truth.orphans += 1
            continue
        held.setdefault(str(allocation), []).append(Grant(device, kind, minor, uuid, core, memory, bool(whole)))
    for key, state, namespace, name, uid, holder, node in allocations:
        own = tuple(held.get(str(key), ()))
        truth.allocations.append(AllocationRow(str(key), state, namespace, name, uid, holder, node, own))
    truth.pods = {pod.uid: pod for pod in map(pod_view, stack.api.items("/api/v1/pods"))}
    truth.leases = {name: lease_view(found) for name, found in stack.leases().items()}
    truth.nodes = {one["metadata"]["name"] for one in stack.api.items("/api/v1/nodes")}
    return truth


def rows(gpuplane: Gpuplane) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Devices, live allocations and grants in one read transaction."""
    devices, allocations, grants = select(gpuplane, _DEVICES, _ALLOCATIONS, _GRANTS)
    return devices, allocations, grants


def _group_row(row: Sequence[Any]) -> GroupRow:
    name, node, state, gpus, shared, told, *pod = row
    uuids = json.loads(told) if isinstance(told, str) else told
    return GroupRow(name, node, state, gpus, bool(shared), tuple(uuids), *pod)


def select(gpuplane: Gpuplane, *statements: str) -> list[Sequence[Any]]:
    """The rows of each statement, all in one read transaction of the ledger."""
    if gpuplane.database_url:
        with psycopg.connect(gpuplane.database_url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            return [connection.execute(statement.encode()).fetchall() for statement in statements]
    lite = sqlite3.connect(
        f"file:{gpuplane.data / 'gpuplane.sqlite3'}?mode=ro", uri=True, timeout=20, isolation_level=None
    )
    try:
        lite.execute("BEGIN")
        found: list[Sequence[Any]] = [lite.execute(statement).fetchall() for statement in statements]
        lite.execute("COMMIT")
    finally:
        lite.close()
    return found


def pod_view(found: Json) -> PodView:
    """A pod of the API."""
    meta, spec, status = found["metadata"], found["spec"], found.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    told = conditions.get("PodScheduled", {})
    return PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        node=spec.get("nodeName", ""),
        phase=status.get("phase", ""),
        scheduler=spec.get("schedulerName", ""),
        annotations=meta.get("annotations") or {},
        asks=_asks(found),
        scheduled=" ".join(filter(None, (told.get("status"), told.get("reason"), told.get("message")))),
        labels=meta.get("labels") or {},
        deleted="deletionTimestamp" in meta,
    )


def lease_view(found: Json) -> LeaseView:
    """A Lease of the API."""
    meta = found["metadata"]
    sharers = (meta.get("annotations") or {}).get("gpu.scheduling/sharers", "")
    return LeaseView(
        name=meta["name"],
        holder=found["spec"].get("holderIdentity", ""),
        sharers=tuple(json.loads(sharers)) if sharers else (),
        ours=(meta.get("labels") or {}).get("app.kubernetes.io/managed-by") == "gpuplane",
    )


def _asks(found: Json) -> bool:
    if "gpu.scheduling/claim" in (found["metadata"].get("annotations") or {}):
        return True
    containers = [*(found["spec"].get("containers") or ()), *(found["spec"].get("initContainers") or ())]
    return any(
        (name.startswith(("kubernetes.io/", "koordinator.sh/")) or name == "nvidia.com/gpu") and str(amount) != "0"
        for container in containers
        for part in ("requests", "limits")
        for name, amount in ((container.get("resources") or {}).get(part) or {}).items()
    )
