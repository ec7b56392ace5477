"""Ledger and API server compared from outside: the sentences of the cluster tests, about the stand-in API server and
the test's database.

`tests.cluster.invariants` says what must be true, and is tested against planted errors; here is only the reading.
"""

from __future__ import annotations

from allocations.choices import LIVE
from allocations.models import Allocation, AllocationDevice
from nodes.models import Device
from tests import ledger_truth
from tests.cluster import invariants
from tests.cluster.truth import AllocationRow, DeviceRow, Grant, Truth, lease_view, pod_view
from tests.fakes.apiserver import ApiServer


def truth_of(server: ApiServer) -> Truth:
    """Everything that either side says now."""
    truth = Truth(orphans=AllocationDevice.objects.filter(live=True).exclude(allocation__state__in=LIVE).count())
    for device in Device.objects.select_related("node"):
        truth.devices[device.pk] = DeviceRow(
            id=device.pk,
            node=device.node.name,
            type=device.type,
            minor=device.minor,
            uuid=device.uuid,
            memory_bytes=device.memory_bytes,
            core_used=device.core_used,
            memory_used=device.memory_used,
            presence=device.presence,
            stranger=device.stranger,
        )
    for row in Allocation.objects.filter(state__in=LIVE).select_related("node").prefetch_related("devices"):
        grants = tuple(
            Grant(one.device_id, one.type, one.minor, one.uuid, one.core_percent, one.memory_bytes, one.whole)
            for one in row.devices.all()
            if one.live and one.device_id is not None
        )
        truth.allocations.append(
            AllocationRow(
                str(row.pk), row.state, row.namespace, row.pod_name, row.pod_uid, row.holder, row.node.name, grants
            )
        )
    truth.pods = {pod.uid: pod for pod in map(pod_view, server.pods.values())}
    truth.leases = {name: lease_view(lease) for (_, name), lease in server.leases.items()}
    truth.nodes = set(server.nodes)
    return truth


def given_twice(server: ApiServer) -> list[str]:
    """What must not be at any moment, whatever is still on its way: by the pods' annotations, by the ledger."""
    return [*invariants._handed_out(truth_of(server)), *ledger_truth.problems(leases=False)]


def differences(server: ApiServer) -> list[str]:
    """What must not be once nothing is on its way any more: ledger = annotations = Leases."""
    truth = truth_of(server)
    unsettled = [f"{row.label} is still {row.state}" for row in truth.allocations if row.state != "bound"]
    return [*invariants.problems(truth), *unsettled, *ledger_truth.problems(leases=False)]
