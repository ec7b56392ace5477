"""Fleets for the bench: thousands of nodes in seconds, two fifths of their GPUs held.

Used by `over_http` (rows) and `in_process` (pictures). The rows are what registration and the ledger
would have written, put in by bulk, since 40,000 devices through the services would take minutes.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import msgspec
from django.db import connection, transaction

from allocations.choices import State
from allocations.engine.snapshot import Snapshot
from allocations.models import Allocation, AllocationDevice
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from claims.models import GpuClaim
from nodes import revisions
from nodes.models import Device, Node
from tests.bench.bodies import CLAIMS, NAMESPACE
from tests.builders import H100_BYTES, Links, fleet, full_mesh, halves, node, pairs

MADE = datetime(2026, 1, 1, tzinfo=UTC)
GPUS = 8
WIRINGS = (full_mesh, halves, pairs)
_HELD: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0, 1, 2, 3, 4, 5, 6, 7),),
    ((0, 1, 2, 3),),
    ((0,), (1,), (5,)),
    ((0, 1), (2, 3, 4, 5)),
    (),
)
"""Which GPUs allocations hold, on every fifth node in turn: 22 of 40."""


def names(count: int) -> list[str]:
    """Node names of a usual length."""
    return [f"gpu-rack{number // 16:03d}-node{number:05d}" for number in range(count)]


def links_of(number: int, gpus: int = GPUS) -> Links:
    """The wiring of a node."""
    return WIRINGS[number % len(WIRINGS)](gpus)


@transaction.atomic
def register(count: int, *, held: bool = True, nics: int = 0) -> None:
    """`count` nodes × 8 GPUs and so many NICs, the claims of `bodies`, and allocations in state bound (`held`)."""
    revision = revisions.next_revision()
    nodes = Node.objects.bulk_create(
        [
            Node(
                name=name,
                labels={"topology.kubernetes.io/rack": f"r{number // 8:03d}", "pool": f"pool-{number % 5}"},
                links=[list(link) for link in links_of(number)],
                registered_at=MADE,
                changed_at=MADE,
            )
            for number, name in enumerate(names(count))
        ],
        batch_size=500,
    )
    taken = [
        {minor for minors in _HELD[number % len(_HELD)] for minor in minors} if held else set()
        for number in range(count)
    ]
    devices = Device.objects.bulk_create(
        [
            Device(
                node=one,
                type="gpu",
                minor=minor,
                uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{one.name}/{minor}')}",
                model="NVIDIA H100 80GB HBM3",
                memory_bytes=H100_BYTES,
                numa=minor // 4,
                pcie=f"0000:{minor // 2:02x}",
                island=0,
                core_used=100 if minor in used else 0,
                memory_used=H100_BYTES if minor in used else 0,
                revision=revision,
                changed_at=MADE,
            )
            for one, used in zip(nodes, taken, strict=True)
            for minor in range(GPUS)
        ],
        batch_size=500,
    )
    Device.objects.bulk_create(
        (
            Device(
                node=one,
                type="rdma",
                minor=minor,
                uuid=f"NIC-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{one.name}/{minor}')}",
                pcie=f"0000:{minor:02x}",
                numa=minor // 2,
                revision=revision,
                changed_at=MADE,
            )
            for one in nodes
            for minor in range(nics)
        ),
        batch_size=500,
    )
    if held:
        _allocate(nodes, devices)
    GpuClaim.objects.bulk_create(
        GpuClaim(namespace=NAMESPACE, name=name, spec=spec, created_at=MADE, changed_at=MADE)
        for name, spec in CLAIMS.items()
    )


def running(count: int) -> int:
    """How many pods `register` puts on so many nodes."""
    return sum(len(_HELD[number % len(_HELD)]) for number in range(count))


def analyze() -> None:
    """What autovacuum would have done by now on PostgreSQL."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")


def _allocate(nodes: list[Node], devices: list[Device]) -> None:
    allocations, grants = [], []
    for number, one in enumerate(nodes):
        for minors in _HELD[number % len(_HELD)]:
            name = f"old-{number}-{minors[0]}"
            request = DeviceRequest(asks=(DeviceAsk("gpu", len(minors)),), dialect=Dialect.GPUCLAIM, claim="one")
            allocation = Allocation(
                state=State.BOUND,
                namespace=NAMESPACE,
                pod_name=name,
                pod_uid=f"uid-{name}",
                holder=f"{NAMESPACE}/{name}/uid-{name}",
                node=one,
                claim_name="one",
                dialect=Dialect.GPUCLAIM,
                request=msgspec.to_builtins(request),
                created_at=MADE,
                bound_at=MADE,
                changed_at=MADE,
            )
            allocations.append(allocation)
            for minor in minors:
                device = devices[number * GPUS + minor]
                grants.append(
                    AllocationDevice(
                        allocation=allocation,
                        device=device,
                        uuid=device.uuid,
                        type="gpu",
                        minor=minor,
                        core_percent=100,
                        memory_bytes=H100_BYTES,
                        whole=True,
                    )
                )
    Allocation.objects.bulk_create(allocations, batch_size=500)
    AllocationDevice.objects.bulk_create(grants, batch_size=500)


def sixteens(count: int, *, turn: int = 0) -> Snapshot:
    """A picture of nodes with 16 GPUs in three wirings, some GPUs of each taken; `turn` varies which."""
    return fleet(
        *(
            node(
                name,
                gpus=16,
                links=links_of(number, 16),
                taken={(number * 7 + turn * 3 + k * k) % 16 for k in range(5)},
            )
            for number, name in enumerate(names(count))
        )
    )


def eights(count: int) -> Snapshot:
    """A picture of free nodes with 8 GPUs in three wirings."""
    return fleet(*(node(name, gpus=8, links=links_of(number, 8)) for number, name in enumerate(names(count))))
