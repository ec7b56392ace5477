"""Advisory mode without a cluster: filter and bind of a pod may come to different processes."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from pytest_django import Settings

from allocations.extender.advised import record_request, recorded_request
from allocations.models import AdvisedPod, Allocation
from allocations.pod_request import PodRequest
from allocations.reconcile.garbage_collection import REFUSAL_LIMIT, forget_refusals
from storage.clock import database_now
from tests.builders import whole
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.servers import forked

_FILTER = """
import sys, django
django.setup()
from allocations.extender import views
sys.stdout.buffer.write(views.filter(sys.stdin.buffer.read()))
"""


def test_bind_knows_what_another_process_filtered(ledger_db: TestDatabase, settings: Settings) -> None:
    """CLAIM-4 a second replica, or the same one after a restart."""
    settings.GPUPLANE_EXTENDER_MODE = "advisory"
    NodeFactory(name="n1", gpus=2)
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    pod = pod_manifest("p", claim="two")
    told = forked.run(
        "-c",
        _FILTER,
        given=json.dumps({"Pod": pod, "NodeNames": ["n1"]}).encode(),
        environment={**ledger_db.environment, "GPUPLANE_EXTENDER_MODE": "advisory"},
    )
    assert told.poll() == 0, told.errors[-3000:]
    assert json.loads(told.output)["NodeNames"] == ["n1"]
    assert bound(pod, "n1") == ""
    assert Allocation.objects.get(state="bound").devices.count() == 2


@pytest.mark.usefixtures("ledger_db")
def test_the_last_word_of_a_pod_counts() -> None:
    """CLAIM-4 and is forgotten when nobody asked again for long."""
    now = database_now()
    record_request("u", PodRequest(whole(1), 1, 30, confined=False), now)
    record_request("u", PodRequest(whole(2), None, 30, confined=True, priority=3, rank=3), now)
    assert recorded_request("u") == PodRequest(whole(2), None, 30, confined=True, priority=3, rank=3)
    assert recorded_request("v") is None
    forget_refusals(now)
    assert AdvisedPod.objects.count() == 1
    forget_refusals(now + REFUSAL_LIMIT + timedelta(seconds=1))
    assert recorded_request("u") is None


@pytest.mark.usefixtures("ledger_db")
def test_nothing_is_noted_where_filter_holds() -> None:
    """In the default mode the hold says it all."""
    NodeFactory(name="n1", gpus=2)
    GpuClaimFactory(name="one")
    assert filtered(pod_manifest("p", claim="one"), ["n1"]) == "n1"
    assert not AdvisedPod.objects.exists()
