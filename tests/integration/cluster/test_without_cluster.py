"""Comparing where there is no Kubernetes: leases are rows, and nobody else makes any."""

from __future__ import annotations

from datetime import timedelta

from access.actors import SYSTEM
from allocations.backends import current_backends
from allocations.cluster_health import cluster_state
from allocations.leases.port import Want
from allocations.reconcile import reconcile
from allocations.services import claim_devices
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.factories import GpuClaimFactory, NodeFactory


def test_orphans(ledger_db: TestDatabase) -> None:
    """LEASE-6 a lease of the database without an allocation goes, those of live allocations stay."""
    NodeFactory(name="n1", gpus=2)
    claim_devices(claim=GpuClaimFactory(), actor=SYSTEM)
    world = current_backends()
    (mine,) = world.leases.all()
    world.leases.take([Want("gpu-n1-1", "n1", "GPU-n1-1", whole=True)], "research/gone/1", now=database_now())

    assert reconcile(backends=world, now=database_now()).quiet
    assert reconcile(backends=world, now=database_now() + timedelta(seconds=90)).leases_deleted == 1
    assert [lease.name for lease in world.leases.all()] == [mine.name]
    assert cluster_state() is None


def test_a_device_that_an_orphan_kept_out_comes_back(ledger_db: TestDatabase) -> None:
    """LEASE-6 a bind that stalled leaves a lease behind; the device it blocks is of use again once that is gone."""
    assert ledger_db
    NodeFactory(name="n1", gpus=2)
    world = current_backends()
    world.leases.take([Want("gpu-n1-0", "n1", "GPU-n1-0", whole=True)], "research/gone/1", now=database_now())
    allocation = claim_devices(claim=GpuClaimFactory(), actor=SYSTEM)
    assert allocation.devices.get().minor == 1
    assert Device.objects.get(minor=0).stranger == "research/gone/1"

    assert reconcile(backends=world, now=database_now()).strangers_cleared == 0
    assert reconcile(backends=world, now=database_now() + timedelta(seconds=90)).strangers_cleared == 1
    assert Device.objects.get(minor=0).stranger == ""
