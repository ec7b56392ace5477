"""What an agent says that this program does not know."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync

from access.actors import SYSTEM
from agent.protocol import Inventory
from nodes.live.ingest import RECORD
from nodes.models import Device

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_inventory_of_a_newer_agent_is_taken() -> None:
    """NODE-2 during an upgrade agents may be newer than the processes that they speak to: unknown keys are
    passed over.
    """
    gpu = {"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi", "firmware": "96.00"}
    frame = Inventory("b0", 1, 1.0, {"devices": [gpu], "chassis": "x"})
    given = async_to_sync(RECORD.inventory)("n1", frame, SYSTEM)
    assert given == ("GPU-0",)
    assert Device.objects.get().uuid == "GPU-0"
