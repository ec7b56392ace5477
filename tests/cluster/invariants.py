"""The promise, compared from outside: ledger = Leases = annotations = devices, no device given twice, none lost.

`settled` is called at the end of every cluster test; `problems` is the comparison itself, a pure function of what was
read, tested against a planted error of each kind in tests/cluster/test_invariants.py.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.cluster.controlplane.stack import Stack
from tests.cluster.group_promises import Records, group_problems, group_unrest, kubelet_problems
from tests.cluster.truth import AllocationRow, Grant, PodView, Truth, read

ALLOCATED = "gpu.scheduling/allocated"
VISIBLE = "gpu.scheduling/visible-devices"
KOORDINATOR = "scheduling.koordinator.sh/device-allocated"
AMOUNTS = "gpu.scheduling/amounts"
CHOSEN_BY = "gpu.scheduling/chosen-by"
SHARED = "gpuplane/shares"
SCHEDULER = "gpu-scheduler"
TWICE = 2
"""Settled means: nothing wrong in that many readings one after the other."""


@dataclass(frozen=True)
class Amount:
    """What one device gives, as an annotation in Koordinator's form says it. `core` in percent, `memory` in bytes."""

    type: str
    minor: int
    core: int
    memory: int
    whole: bool

    def __str__(self) -> str:
        """For sentences."""
        size = "whole" if self.whole else f"{self.core} core"
        return f"{self.type} {self.minor} {size}, {self.memory} bytes"


def settled(stack: Stack, *, seconds: float = 60.0, records: Callable[[], Records] | None = None) -> Truth:
    """Wait until all is at rest and as promised. AssertionError after `seconds`, with every sentence.

    `records`: what the imitated kubelets have given, where a test has some.
    """
    deadline = time.monotonic() + seconds
    good = 0
    while True:
        truth = read(stack)
        given = kubelet_problems(truth, records()) if records is not None else []
        found = [*problems(truth), *given, *unrest(truth)]
        good = 0 if found else good + 1
        if good == TWICE:
            return truth
        if found and time.monotonic() > deadline:
            listed = "\n  ".join([*found[:12], *_programs(stack)])
            raise AssertionError(f"after {seconds:.0f} s {len(found)} things are not as promised:\n  {listed}")
        time.sleep(0.1)  # the ledger announces its rest to nobody


def _programs(stack: Stack) -> Iterator[str]:
    """What may explain it: programs that ended, and what those that give devices back said last."""
    for one in (*stack.plane.programs, *stack.gpuplane.programs):
        if not one.alive:
            yield f"{one.name} does not run"
    for one in (stack.gpuplane.worker, stack.gpuplane.watch, stack.gpuplane.beat):
        yield from (f"{one.name}: {line}" for line in one.tail(4).splitlines())


def problems(truth: Truth) -> list[str]:
    """Every broken promise as a sentence; empty when all is well."""
    return [
        *_use(truth),
        *_pods(truth),
        *_annotations(truth),
        *_handed_out(truth),
        *_leases(truth),
        *group_problems(truth),
    ]


def unrest(truth: Truth) -> list[str]:
    """What is still on its way: neither bound nor refused with a reason, neither held nor given back."""
    found = [f"{row.label} is still {row.state}" for row in truth.allocations if row.state != "bound"]
    for pod in truth.pods.values():
        if pod.asks and pod.scheduler == SCHEDULER and not pod.node and not pod.finished:
            status, _, said = pod.scheduled.partition(" ")
            if status != "False" or not said.startswith("Unschedulable ") or len(said.split()) < 2:
                found.append(
                    f"{pod.label} is neither bound nor unschedulable with a reason: {pod.scheduled or 'nothing'}"
                )
    return [*found, *group_unrest(truth), *_strangers(truth)]


def _strangers(truth: Truth) -> Iterator[str]:
    """A stranger's Lease keeps its device out of use, for as long as it is there. gpuplane compares now and then."""
    for device in truth.devices.values():
        lease = truth.leases.get(device.lease)
        if device.presence == "removed" or (lease is not None and lease.ours):
            continue
        if lease is not None and not device.stranger:
            yield f"lease {lease.name} is held by the stranger {lease.holder}, and {device.label} counts as usable"
        elif lease is None and device.stranger:
            yield f"{device.label} is kept out of use for {device.stranger}, who holds no lease"


def _use(truth: Truth) -> Iterator[str]:
    """Devices are used by exactly what their grants say, within their size, a whole one by one holder."""
    by_device: dict[int, list[tuple[AllocationRow, Grant]]] = defaultdict(list)
    for row in truth.allocations:
        if not row.grants:
            yield f"{row.label} holds no device"
        for grant in row.grants:
            by_device[grant.device].append((row, grant))
    for device in truth.devices.values():
        held = [grant for _, grant in by_device[device.id]]
        core, memory = sum(grant.core_percent for grant in held), sum(grant.memory_bytes for grant in held)
        if (device.core_used, device.memory_used) != (core, memory):
            yield (
                f"{device.label} says {device.core_used} core, {device.memory_used} bytes; its grants {core}, {memory}"
            )
        if core > 100 or memory > device.memory_bytes:
            yield f"{device.label} is given beyond its size"
        if len(held) > 1 and any(grant.whole for grant in held):
            yield f"{device.label} is given whole and has {len(held)} holders"
        if held and device.presence == "removed":
            yield f"{device.label} is held and was removed"
        for row, grant in by_device[device.id]:
            if (grant.minor, grant.uuid, row.node) != (device.minor, device.uuid, device.node):
                yield f"{row.label} names {grant.type} {grant.minor} of {row.node}, which is {device.label}"
    if truth.orphans:
        yield f"{truth.orphans} grants live on in allocations that have ended"


def _pods(truth: Truth) -> Iterator[str]:
    """A bound row has its pod, running on its node; a pod that runs with devices has its row."""
    by_pod: dict[str, list[AllocationRow]] = defaultdict(list)
    for row in truth.allocations:
        if row.pod_uid:
            by_pod[row.pod_uid].append(row)
    for uid, rows in by_pod.items():
        if len(rows) > 1:
            yield f"pod {uid} has {len(rows)} live allocations"
        pod = truth.pods.get(uid)
        for row in rows:
            if pod is None:
                yield f"{row.label} holds devices, and its pod is gone"
            elif pod.finished:
                yield f"{row.label} holds devices, and its pod has {pod.phase.lower()}"
            elif row.state == "bound" and pod.node != row.node:
                yield f"{row.label} is bound to {row.node}, its pod runs on {pod.node or 'no node'}"
    for pod in _running(truth):
        if not any(row.state == "bound" for row in by_pod[pod.uid]):
            yield (
                f"{pod.label} runs on {pod.node} with {pod.annotations.get(ALLOCATED, 'no devices')} and has no"
                " allocation"
            )


def _running(truth: Truth) -> Iterator[PodView]:
    """Pods that hold devices: bound, not over, on a node that is there, and asking or told."""
    for pod in truth.pods.values():
        if (
            pod.node in truth.nodes
            and not pod.finished
            and (ALLOCATED in pod.annotations or (pod.asks and pod.scheduler == SCHEDULER))
        ):
            yield pod


def _annotations(truth: Truth) -> Iterator[str]:
    """What a pod was told is what the ledger gave it."""
    for row in truth.allocations:
        pod = truth.pods.get(row.pod_uid)
        if row.state != "bound" or pod is None or not row.grants or _chosen_by_others(pod):
            continue
        if CHOSEN_BY in pod.annotations:
            if ALLOCATED in pod.annotations:
                yield f"{row.label} was left to the kubelet, and its pod says {pod.annotations[ALLOCATED]}"
            continue
        ordered = sorted(row.grants, key=lambda grant: (grant.type != "gpu", grant.type, grant.minor))
        first = [grant for grant in ordered if grant.type == ordered[0].type]
        minors = ",".join(str(grant.minor) for grant in first)
        if pod.annotations.get(ALLOCATED) != f"{row.node}:{minors}":
            yield f"{row.label} got {row.node}:{minors}, its pod says {pod.annotations.get(ALLOCATED)}"
        gpus = [grant.uuid for grant in ordered if grant.type == "gpu"]
        if pod.annotations.get(VISIBLE) != ",".join(gpus):
            yield f"{row.label} got {gpus}, its pod sees {pod.annotations.get(VISIBLE)}"
        # in Koordinator's words a share of all that a device has is a whole device
        full = [replace(grant, whole=grant.whole or _is_all(grant, truth)) for grant in ordered]
        for key, given in ((KOORDINATOR, _amounts_of(full)), (AMOUNTS, _amounts_of(ordered))):
            said = _amounts(pod.annotations[key]) if key in pod.annotations else given
            if said is None:
                yield f"{row.label} has a pod whose {key} cannot be read"
            elif said != given:
                yield f"{row.label} got {_listed(given)}, its pod's {key} says {_listed(said)}"


def _chosen_by_others(pod: PodView) -> bool:
    """Placed by another scheduler, with devices that its node's kubelet chose: nobody told it."""
    return pod.scheduler != SCHEDULER and ALLOCATED not in pod.annotations


def _amounts(text: str) -> set[Amount] | None:
    """What an annotation in Koordinator's form says; None where it cannot be read."""
    try:
        return {
            _amount(kind, device["minor"], device["resources"])
            for kind, devices in json.loads(text).items()
            for device in devices
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _amount(kind: str, minor: int, resources: dict[str, str]) -> Amount:
    told = {name.partition("/")[2]: str(amount) for name, amount in resources.items()}
    core = int(told.get(f"{kind}-core", told.get(kind, "0")))
    # a share may take all the core; with a ratio of 100 it is the whole device, or as good as that
    whole = core == 100 and (f"{kind}-core" not in told or told.get(f"{kind}-memory-ratio") == "100")
    return Amount(kind, minor, core, _bytes(told.get(f"{kind}-memory", "0")), whole)


def _is_all(grant: Grant, truth: Truth) -> bool:
    device = truth.devices.get(grant.device)
    return grant.core_percent == 100 and device is not None and grant.memory_bytes == device.memory_bytes


def _amounts_of(grants: list[Grant]) -> set[Amount]:
    return {
        Amount(grant.type, grant.minor, grant.core_percent, grant.memory_bytes or 0, grant.whole) for grant in grants
    }


def _bytes(quantity: str) -> int:
    """Bytes of a quantity such as 10Gi."""
    for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1):
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) << (10 * power)
    return int(quantity)


def _listed(amounts: set[Amount]) -> str:
    return "; ".join(sorted(map(str, amounts)))


def _handed_out(truth: Truth) -> Iterator[str]:
    """Without the ledger: by what running pods were told, no device was given twice or beyond its size."""
    whole: dict[str, list[str]] = defaultdict(list)
    shares: dict[str, dict[str, Amount]] = defaultdict(dict)
    sizes = {device.label: device.memory_bytes for device in truth.devices.values()}
    for pod in _running(truth):
        node, _, minors = pod.annotations.get(ALLOCATED, "").partition(":")
        told = pod.annotations.get(KOORDINATOR) or pod.annotations.get(AMOUNTS)
        if told is None:
            for minor in filter(None, minors.split(",")):
                whole[f"gpu {minor} of {node}"].append(pod.label)
            continue
        for amount in _amounts(told) or ():
            name = f"{amount.type} {amount.minor} of {node}"
            if amount.whole:
                whole[name].append(pod.label)
            else:
                shares[name][pod.label] = amount
    for name, holders in whole.items():
        if len(holders) > 1 or shares.get(name):
            yield f"{name} was handed out twice: {', '.join(sorted([*holders, *shares.get(name, ())]))}"
    for name, parts in shares.items():
        core, memory = sum(part.core for part in parts.values()), sum(part.memory for part in parts.values())
        if core > 100:
            yield f"{name} was handed out to {core} percent"
        if memory > sizes.get(name, memory):
            yield f"{name} was handed out to {memory} of {sizes[name]} bytes"


def _leases(truth: Truth) -> Iterator[str]:
    """Each device held by a pod has its Lease with that holder; a Lease of ours stands for a live row."""
    wanted: dict[str, set[str]] = defaultdict(set)
    allowed: dict[str, set[str]] = defaultdict(set)
    shared: set[str] = set()
    for row in truth.allocations:
        for grant in row.grants:
            name = f"{grant.type}-{row.node}-{grant.minor}"
            if row.state != "held":
                allowed[name].add(row.holder)
            if row.state == "bound":
                wanted[name].add(row.holder)
            if not grant.whole:
                shared.add(name)
    for name, holders in wanted.items():
        lease = truth.leases.get(name)
        if lease is None:
            yield f"lease {name} is missing; {', '.join(sorted(holders))} holds the device"
        elif not holders <= (set(lease.sharers) if name in shared else {lease.holder}):
            yield (
                f"lease {name} is held by {lease.holder} {list(lease.sharers)}, the device by"
                f" {', '.join(sorted(holders))}"
            )
        elif name in shared and lease.holder != SHARED:
            yield f"lease {name} is shared and held by {lease.holder}"
    for name, lease in truth.leases.items():
        have = set(lease.sharers) if lease.holder == SHARED else {lease.holder}
        if lease.ours and (have - allowed[name] or not have):
            yield f"lease {name} is held by {', '.join(sorted(have - allowed[name])) or 'nobody'}, who holds no device"
