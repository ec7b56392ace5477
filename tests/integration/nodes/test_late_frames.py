"""Frames of agents that wait long for a thread of the database."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from agent.protocol import Inventory
from nodes.live import ingest
from nodes.live.ingest import Record, Session
from nodes.live.samples import SampleTable
from nodes.models import Device
from tests.unit.nodes.live.actors import AGENT

pytestmark = pytest.mark.django_db(transaction=True)
MACHINE = {"name": "n1", "devices": [{"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}]}


async def test_a_turn_that_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 the agent may have said something newer to another process meanwhile: it is asked to say it again."""
    session = Session("n1", AGENT, table=SampleTable(), record=Record())
    monkeypatch.setattr(ingest, "LATE_SECONDS", -1.0)
    late = await session.take(Inventory("b0", 1, 1.0, MACHINE), now=0.0, epoch=1_000.0)
    assert late is not None
    assert late.again
    assert not await sync_to_async(Device.objects.exists)()
    monkeypatch.undo()
    again = await session.take(Inventory("b0", 2, 2.0, MACHINE), now=1.0, epoch=1_001.0)
    assert again is not None
    assert (again.again, again.problem) == (False, "")
    assert await sync_to_async(Device.objects.exists)()
