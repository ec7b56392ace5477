"""Several web processes at once on the last devices, through the door that they serve, with an API server: whatever the
code does, no device has two holders.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import pytest
from django.conf import settings

from allocations.choices import LIVE
from allocations.models import Allocation
from kube.keys import CLAIM
from nodes.models import Device
from tests.databases import TestDatabase
from tests.integration.cluster.comparing import differences, given_twice
from tests.integration.cluster.conftest import World
from tests.servers import forked

PROCESSES = 8
ATTEMPTS = {"postgresql": 10_000, "sqlite": 2_400}
"""Of all processes together. A file has one writer at a time, so that fewer of them meet there in the time."""


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_eight_processes_race_for_the_last_devices(world: World, ledger_db: TestDatabase) -> None:
    """LEASE-2 thousands of attempts by 8 processes on 8 GPUs: ledger, Leases and annotations agree, no double booking,
    nothing leaked.
    """
    for name in ("node-a", "node-b"):
        world.node(name)
    world.claim("one", count=1)
    world.claim("two", count=2)
    world.claim("half", count=1, core=50, memoryRatio=50)
    world.server.add_namespace("gpuplane-system")
    attempts = ATTEMPTS[ledger_db.vendor]
    met = _raced(ledger_db, attempts)
    assert met["held"] + met["refused"] >= attempts
    assert met["bound"] > attempts // 20, met
    assert met["refused"] > attempts // 10, "they did fight for the last devices"
    assert given_twice(world.server) == []
    # what was left behind in the middle is collected, what runs is kept
    for later in (120, 240):
        world.collect_garbage(later=later)
        world.reconcile(later=later)
    assert differences(world.server) == []
    running = [pod for pod in world.server.pods.values() if pod["spec"].get("nodeName")]
    assert len(running) == Allocation.objects.filter(state__in=LIVE).count()
    for pod in list(world.server.pods.values()):
        assert CLAIM in pod["metadata"]["annotations"]
        world.remove(pod["metadata"]["name"])
    world.reconcile(later=360)
    assert differences(world.server) == []
    assert not Allocation.objects.filter(state__in=LIVE).exists()
    assert not Device.objects.exclude(core_used=0, memory_used=0).exists()
    assert world.leases() == {}


def _raced(database: TestDatabase, attempts: int) -> Counter[str]:
    """What all of the processes met."""
    environment = {**database.environment, "GPUPLANE_KUBECONFIG": settings.GPUPLANE_KUBECONFIG}
    words = [(str(number), str(attempts // PROCESSES)) for number in range(PROCESSES)]
    met: Counter[str] = Counter()
    with contextlib.ExitStack() as ends:
        racers = [
            ends.enter_context(forked.start("tests.integration.cluster.racer", *arguments, environment=environment))
            for arguments in words
        ]
        for racer in racers:
            assert racer.wait(550) == 0, racer.errors[-4000:]
            met.update(json.loads(racer.output.splitlines()[-1]))
    return met
