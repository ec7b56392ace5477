"""What must be true of the ledger at any moment, read from the tables alone."""

from __future__ import annotations

from collections import Counter, defaultdict

from allocations import fleet
from allocations.choices import LIVE, State
from allocations.leases.port import SHARED_HOLDER, lease_name
from allocations.models import Allocation, AllocationDevice, Lease
from nodes.models import Device


def problems(*, leases: bool = True) -> list[str]:
    """Every broken promise as a sentence; empty when all is well. `leases`: those of the database port too."""
    return [*_use(), *_pods(), *(_leases() if leases else ()), *_picture()]


def _use() -> list[str]:
    """Devices are used by exactly what their live grants say, and a whole one by one holder."""
    core: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    holders: dict[int, list[bool]] = defaultdict(list)
    for grant in AllocationDevice.objects.filter(live=True).select_related("allocation"):
        assert grant.device_id is not None
        core[grant.device_id] += grant.core_percent
        memory[grant.device_id] += grant.memory_bytes
        holders[grant.device_id].append(grant.whole)
    found = []
    for device in Device.objects.all():
        if (device.core_used, device.memory_used) != (core[device.pk], memory[device.pk]):
            found.append(
                f"{device} says {device.core_used}/{device.memory_used}, its grants"
                f" {core[device.pk]}/{memory[device.pk]}"
            )
        if device.core_used > 100 or device.memory_used > device.memory_bytes:
            found.append(f"{device} is used beyond its size")
        if any(holders[device.pk]) and len(holders[device.pk]) > 1:
            found.append(f"{device} is given whole and has {len(holders[device.pk])} holders")
    ended = AllocationDevice.objects.filter(live=True).exclude(allocation__state__in=LIVE)
    found += [f"grant {grant.pk} lives on in an ended allocation" for grant in ended]
    dead = AllocationDevice.objects.filter(live=False, allocation__state__in=LIVE)
    return found + [f"grant {grant.pk} is dead in a live allocation" for grant in dead]


def _pods() -> list[str]:
    live = Allocation.objects.filter(state__in=LIVE).exclude(pod_uid="")
    counts = Counter(live.values_list("pod_uid", flat=True))
    return [f"pod {uid} has {count} live allocations" for uid, count in counts.items() if count > 1]


def _leases() -> list[str]:
    """Each device of a bound allocation has its lease; a lease stands for a reservation, a bound or a releasing one."""
    wanted: dict[str, set[str]] = defaultdict(set)
    allowed: dict[str, set[str]] = defaultdict(set)
    shared: set[str] = set()
    live = AllocationDevice.objects.filter(live=True).select_related("allocation", "allocation__node")
    for grant in live:
        name = lease_name(grant.type, grant.allocation.node.name, grant.minor)
        allowed[name].add(grant.allocation.holder)
        if grant.allocation.state == State.BOUND:
            wanted[name].add(grant.allocation.holder)
        if not grant.whole:
            shared.add(name)
    found = []
    there = {lease.name: lease for lease in Lease.objects.all()}
    for name, holders in wanted.items():
        lease = there.get(name)
        have = set() if lease is None else set(lease.sharers) if name in shared else {lease.holder_identity}
        if not holders <= have:
            found.append(f"lease {name} is held by {have}, not by {holders}")
    for name, lease in there.items():
        have = set(lease.sharers) if lease.holder_identity == SHARED_HOLDER else {lease.holder_identity}
        strangers = {one for one in have - allowed[name] if not one.startswith("stranger")}
        if strangers:
            found.append(f"lease {name} is held by {strangers}, who hold nothing")
    return found


def _picture() -> list[str]:
    """The picture in memory says what the tables say."""
    fleet.current()
    differing = fleet.compare()
    return [f"the picture differed in {differing} devices"] if differing else []
