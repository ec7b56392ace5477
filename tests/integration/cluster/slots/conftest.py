"""Slots beside pods, with a cluster: Leases at the stand-in API server, on either database."""

from __future__ import annotations

import pytest

from nodes.models import Node
from tests.databases import TestDatabase
from tests.integration.cluster.conftest import World
from tests.slots import SlotWorld


class SlotsInCluster(SlotWorld):
    """`cluster`: pods, Leases, collection; `database`: races."""

    def __init__(self, cluster: World, database: TestDatabase) -> None:
        super().__init__()
        self.cluster = cluster
        self.database = database
        cluster.server.add_namespace("gpuplane-system")

    def runner_node(self, name: str = "n1", *, gpus: int = 1, memory: int = 40) -> None:
        """A node of the cluster with a runner."""
        self.node(name, gpus=gpus, memory=memory)
        self.cluster.server.add_node(name)
        self.runner(name)

    def label(self, name: str, labels: dict[str, str]) -> None:
        """Labels of a node."""
        Node.objects.filter(name=name).update(labels=labels)

    def sharers(self) -> int:
        """Holders named by Leases."""
        return sum(
            lease["metadata"]["annotations"].get("gpu.scheduling/sharers", "").count("slot/")
            for lease in self.cluster.server.leases.values()
        )


@pytest.fixture
def slots(world: World, ledger_db: TestDatabase) -> SlotsInCluster:
    return SlotsInCluster(world, ledger_db)
