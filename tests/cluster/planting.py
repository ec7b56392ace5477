"""A sound picture of ledger and cluster, and the errors that can be planted in it.

`sound` makes the picture, `told` the JSON of amounts that its pods carry; all others give, or are, a function that
changes a picture. Used by the tables of `test_invariants`; nothing here needs a cluster.
"""

import json
from collections.abc import Callable
from dataclasses import replace

from tests.cluster.invariants import ALLOCATED, AMOUNTS, KOORDINATOR, VISIBLE
from tests.cluster.truth import AllocationRow, DeviceRow, Grant, LeaseView, PodView, Truth

GIB = 2**30
BIG = 80 * GIB


def told(*shares: tuple[str, int, int, str], prefix: str = "kubernetes.io") -> str:
    """The JSON of amounts: (type, minor, core, quantity of memory or nothing).

    All of a GPU's core and memory is the whole of it.
    """
    found: dict[str, list[object]] = {}
    for kind, minor, core, memory in shares:
        name = "gpu-core" if kind == "gpu" else kind
        resources = {f"{prefix}/{name}": str(core)}
        if memory:
            resources[f"{prefix}/gpu-memory"] = memory
        if (core, memory) == (100, "80Gi"):
            resources[f"{prefix}/gpu-memory-ratio"] = "100"
        found.setdefault(kind, []).append({"minor": minor, "resources": resources})
    return json.dumps(found)


def sound() -> Truth:
    """Node n: `lone` has GPUs 0 and 1 whole, `left` and `right` share GPU 2, `mixed` has part of GPU 3 and of NIC 0;
    GPU 4 is a stranger's.

    `lone` and `right` speak Koordinator's words, `left` and `mixed` ours. `waits` is refused with a reason, `over` has
    ended, `other` asks for nothing, `theirs` is another scheduler's.
    """
    gpus = [DeviceRow(number, "n", "gpu", number, f"G{number}", BIG, 0, 0) for number in range(5)]
    devices = {one.id: one for one in [*gpus, DeviceRow(5, "n", "rdma", 0, "R0", 0, 30, 0)]}
    devices[4] = replace(devices[4], stranger="somebody else")
    for number, core, memory in ((0, 100, BIG), (1, 100, BIG), (2, 80, 30 * GIB), (3, 20, 5 * GIB)):
        devices[number] = replace(devices[number], core_used=core, memory_used=memory)

    def grant(device: int, core: int = 100, memory: int = BIG) -> Grant:
        row = devices[device]
        return Grant(device, row.type, row.minor, row.uuid, core, memory, core == 100)

    def holder(name: str, *grants: Grant) -> AllocationRow:
        return AllocationRow(f"id-{name}", "bound", "team", name, f"u-{name}", f"team/{name}/u-{name}", "n", grants)

    def runs(name: str, allocated: str, visible: str, **annotations: str) -> PodView:
        carried = {ALLOCATED: f"n:{allocated}", VISIBLE: visible, **annotations}
        return PodView("team", name, f"u-{name}", "n", "Running", "gpu-scheduler", carried, asks=True)

    lone, left = holder("lone", grant(1), grant(0)), holder("left", grant(2, 50, 10 * GIB))
    right = holder("right", grant(2, 30, 20 * GIB))
    mixed = holder("mixed", grant(5, 30, 0), grant(3, 20, 5 * GIB))
    pods = [
        runs("lone", "0,1", "G0,G1", **{KOORDINATOR: told(("gpu", 0, 100, "80Gi"), ("gpu", 1, 100, "80Gi"))}),
        runs("left", "2", "G2", **{AMOUNTS: told(("gpu", 2, 50, "10Gi"))}),
        runs("right", "2", "G2", **{KOORDINATOR: told(("gpu", 2, 30, "20Gi"), prefix="koordinator.sh")}),
        runs("mixed", "3", "G3", **{AMOUNTS: told(("gpu", 3, 20, "5Gi"), ("rdma", 0, 30, ""))}),
        PodView("team", "waits", "u-waits", "", "Pending", "gpu-scheduler", {}, True, "False Unschedulable 0/1 nodes"),
        PodView("team", "over", "u-over", "n", "Succeeded", "gpu-scheduler", {ALLOCATED: "n:0"}, asks=True),
        PodView("team", "other", "u-other", "n", "Running", "gpu-scheduler", {}, asks=False),
        PodView("team", "theirs", "u-theirs", "", "Pending", "default-scheduler", {}, asks=True),
    ]
    leases = [
        LeaseView("gpu-n-0", "team/lone/u-lone"),
        LeaseView("gpu-n-1", "team/lone/u-lone"),
        LeaseView("gpu-n-2", "gpuplane/shares", ("team/left/u-left", "team/right/u-right")),
        LeaseView("gpu-n-3", "gpuplane/shares", ("team/mixed/u-mixed",)),
        LeaseView("rdma-n-0", "gpuplane/shares", ("team/mixed/u-mixed",)),
        LeaseView("gpu-n-4", "somebody else", ours=False),
    ]
    return Truth(
        devices=devices,
        allocations=[lone, left, right, mixed],
        pods={one.uid: one for one in pods},
        leases={one.name: one for one in leases},
        nodes={"n"},
    )


def device(number: int, **fields: object) -> Callable[[Truth], None]:
    """Columns of a device."""

    def plant(truth: Truth) -> None:
        truth.devices[number] = replace(truth.devices[number], **fields)  # type: ignore[arg-type]  # a table's values

    return plant


def row(name: str, **fields: object) -> Callable[[Truth], None]:
    """Columns of an allocation."""

    def plant(truth: Truth) -> None:
        place = next(at for at, one in enumerate(truth.allocations) if one.pod_name == name)
        truth.allocations[place] = replace(truth.allocations[place], **fields)  # type: ignore[arg-type]  # by a table

    return plant


def first_grant(name: str, **fields: object) -> Callable[[Truth], None]:
    """Columns of an allocation's first grant."""

    def plant(truth: Truth) -> None:
        found = next(one for one in truth.allocations if one.pod_name == name)
        changed = replace(found.grants[0], **fields)  # type: ignore[arg-type]  # a table's values
        row(name, grants=(changed, *found.grants[1:]))(truth)

    return plant


def seen(name: str, **fields: object) -> Callable[[Truth], None]:
    """What a pod looks like."""

    def plant(truth: Truth) -> None:
        truth.pods[f"u-{name}"] = replace(truth.pods[f"u-{name}"], **fields)  # type: ignore[arg-type]  # by a table

    return plant


def says(name: str, key: str, value: str | None) -> Callable[[Truth], None]:
    """An annotation of a pod; None takes it away."""

    def plant(truth: Truth) -> None:
        carried = {**truth.pods[f"u-{name}"].annotations, key: value}
        seen(name, annotations={one: text for one, text in carried.items() if text is not None})(truth)

    return plant


def lease(name: str, *, there: bool = True, **fields: object) -> Callable[[Truth], None]:
    """A lease changed, made or taken away."""

    def plant(truth: Truth) -> None:
        before = truth.leases.pop(name, LeaseView(name, ""))
        if there:
            truth.leases[name] = replace(before, **fields)  # type: ignore[arg-type]  # a table's values

    return plant


def no_pod(name: str) -> Callable[[Truth], None]:
    """The pod is gone."""

    def plant(truth: Truth) -> None:
        del truth.pods[f"u-{name}"]

    return plant


def no_row(name: str) -> Callable[[Truth], None]:
    """The ledger lost an allocation, and gave back what it held."""

    def plant(truth: Truth) -> None:
        lost = next(one for one in truth.allocations if one.pod_name == name)
        truth.allocations.remove(lost)
        for grant in lost.grants:
            used = truth.devices[grant.device]
            device(
                grant.device,
                core_used=used.core_used - grant.core_percent,
                memory_used=used.memory_used - grant.memory_bytes,
            )(truth)

    return plant


def second_row(truth: Truth) -> None:
    """The pod `left` has a second allocation, of a free device."""
    free = Grant(4, "gpu", 4, "G4", 10, GIB, whole=False)
    truth.allocations.append(
        AllocationRow("id-2", "reserved", "team", "left", "u-left", "team/left/u-left", "n", (free,))
    )
    device(4, core_used=10, memory_used=GIB)(truth)


def orphans(truth: Truth) -> None:
    """Grants outlive their allocation."""
    truth.orphans = 2


def all_of(*plants: Callable[[Truth], None]) -> Callable[[Truth], None]:
    """Several at once."""

    def plant(truth: Truth) -> None:
        for one in plants:
            one(truth)

    return plant


def overfull(core: int, memory: int) -> Callable[[Truth], None]:
    """`left` was given so much more of GPU 2 that it overflows; pod, ledger and device agree on it."""
    return all_of(
        first_grant("left", core_percent=core, memory_bytes=memory),
        device(2, core_used=core + 30, memory_used=memory + 20 * GIB),
        says("left", AMOUNTS, told(("gpu", 2, core, str(memory)))),
    )
