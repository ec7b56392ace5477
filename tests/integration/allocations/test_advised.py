"""Advisory mode without a cluster: filter and bind of a pod may come to different processes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import pytest
from pytest_django import Settings

from allocations.asking import Asks
from allocations.collection import REFUSAL_LIMIT, forget_refusals
from allocations.extender.advised import asks_note, noted_asks
from allocations.models import AdvisedPod, Allocation
from audit.clock import database_now
from tests.builders import whole
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory

_FILTER = """
import sys, django
django.setup()
from allocations.extender.filter import filter_pod
from allocations.extender.wire import Asked
sys.stdout.buffer.write(filter_pod(Asked(sys.stdin.buffer.read())))
"""


def test_bind_knows_what_another_process_filtered(ledger_db: TestDatabase, settings: Settings) -> None:
    """CLAIM-4 a second replica, or the same one after a restart."""
    settings.GPUPLANE_EXTENDER_MODE = "advisory"
    NodeFactory(name="n1", gpus=2)
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    pod = pod_manifest("p", claim="two")
    told = subprocess.run(
        [sys.executable, "-c", _FILTER],
        input=json.dumps({"Pod": pod, "NodeNames": ["n1"]}).encode(),
        env={**ledger_db.environment, "GPUPLANE_EXTENDER_MODE": "advisory"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert json.loads(told.stdout)["NodeNames"] == ["n1"]
    assert bound(pod, "n1") == ""
    assert Allocation.objects.get(state="bound").devices.count() == 2


@pytest.mark.usefixtures("ledger_db")
def test_the_last_word_of_a_pod_counts() -> None:
    """CLAIM-4 and is forgotten when nobody asked again for long."""
    now = database_now()
    asks_note("u", Asks(whole(1), 1, 30, confined=False), now)
    asks_note("u", Asks(whole(2), None, 30, confined=True, priority=3, rank=3), now)
    assert noted_asks("u") == Asks(whole(2), None, 30, confined=True, priority=3, rank=3)
    assert noted_asks("v") is None
    forget_refusals(now)
    assert AdvisedPod.objects.count() == 1
    forget_refusals(now + REFUSAL_LIMIT + timedelta(seconds=1))
    assert noted_asks("u") is None


@pytest.mark.usefixtures("ledger_db")
def test_nothing_is_noted_where_filter_holds() -> None:
    """In the default mode the hold says it all."""
    NodeFactory(name="n1", gpus=2)
    GpuClaimFactory(name="one")
    assert filtered(pod_manifest("p", claim="one"), ["n1"]) == "n1"
    assert not AdvisedPod.objects.exists()
