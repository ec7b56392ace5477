"""Frames of agents that wait long for a thread of the database, or are overtaken by newer ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest
from asgiref.sync import sync_to_async

from agent.protocol import OTHER_BOOT_SECONDS, AgentFrame, Checkpoint, CheckpointEntry, Health, Hello, Inventory
from nodes.live import ingest
from nodes.live.ingest import Record, Session
from nodes.live.samples import SampleTable
from nodes.models import Device, KubeletCheckpoint, Node
from storage.clock import database_now
from tests.unit.nodes.live.actors import AGENT

pytestmark = pytest.mark.django_db(transaction=True)
MACHINE: Final[dict[str, Any]] = {
    "name": "n1",
    "devices": [{"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}],
}


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


ORDER = ["GPU-0"]
BOOT_HELLO = Hello("b0", 1, 900.0, "n1", "1.0", ORDER)
OLD_MACHINE: Final[dict[str, Any]] = {"name": "n1", "devices": [{**MACHINE["devices"][0], "model": "A100"}]}


async def process() -> Session:
    """A session of the agent with one of the web processes, which has taken its hello."""
    session = Session("n1", AGENT, table=SampleTable(), record=Record())
    await session.take(BOOT_HELLO, now=0.0, epoch=1_000.0)
    return session


def state() -> tuple[str, bool, list[str]]:
    """(the device's model, its health, the pods in the kubelet's checkpoint)."""
    device = Device.objects.get(uuid="GPU-0")
    known = KubeletCheckpoint.objects.filter(node__name="n1").first()
    return device.model, device.healthy, [] if known is None else [pod for pod, *_ in known.entries]


def checkpoint(boot: str, seq: int, at: float, pod: str) -> Checkpoint:
    return Checkpoint(boot, seq, at, [CheckpointEntry(pod, "main", "nvidia.com/gpu", ORDER)])


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        pytest.param(Health("b0", 9, 909.0, {"GPU-0": "Xid 79"}), Health("b0", 5, 905.0, {"GPU-0": ""}), id="health"),
        pytest.param(checkpoint("b0", 9, 909.0, "new"), checkpoint("b0", 5, 905.0, "old"), id="checkpoint"),
        pytest.param(Health("b0", 9, 909.0, {"GPU-0": "Xid 79"}), Inventory("b0", 5, 905.0, MACHINE), id="inventory"),
        pytest.param(Inventory("b0", 9, 909.0, MACHINE), Inventory("b0", 5, 905.0, OLD_MACHINE), id="inventories"),
        pytest.param(
            Health("b1", 2, 909.0, {"GPU-0": "Xid 79"}), Health("b0", 900, 905.0, {"GPU-0": ""}), id="earlier boot"
        ),
    ],
)
async def test_an_older_frame_comes_after_a_newer_one(newer: AgentFrame, older: AgentFrame) -> None:
    """NODE-2 a session that was cut off has a frame on its way in one web process, while its agent has said
    something newer to another: the newer frame counts.
    """
    before, after = await process(), await process()
    await before.take(Inventory("b0", 2, 902.0, MACHINE), now=1.0, epoch=1_001.0)
    stored = await after.take(newer, now=2.0, epoch=1_002.0)
    assert stored is not None
    assert stored.problem == ""
    said = await sync_to_async(state)()
    overtaken = await before.take(older, now=2.0, epoch=1_002.0)
    assert overtaken is not None
    assert overtaken.again
    assert await sync_to_async(state)() == said


async def test_a_frame_that_waited_for_the_node() -> None:
    """NODE-2 one of an earlier boot is old all the same, though the clock was read for it before a newer one came."""
    before, after = await process(), await process()
    await before.take(Inventory("b0", 2, 902.0, MACHINE), now=1.0, epoch=1_001.0)
    await after.take(Inventory("b1", 2, 909.0, MACHINE), now=2.0, epoch=1_002.0)
    await sync_to_async(Node.objects.update)(frame_stored_at=database_now() + timedelta(seconds=5))
    overtaken = await before.take(Inventory("b0", 3, 903.0, OLD_MACHINE), now=2.0, epoch=1_002.0)
    assert overtaken is not None
    assert overtaken.again
    assert (await sync_to_async(state)())[0] == "H100"


@pytest.mark.parametrize("ago", [OTHER_BOOT_SECONDS, -3600], ids=["a minute later", "the database's clock is set back"])
async def test_another_boot_is_taken_in_the_end(ago: float) -> None:
    """NODE-2 an agent whose clock was set back before it restarted is not refused for long."""
    session = await process()
    await session.take(Inventory("b0", 2, 902.0, MACHINE), now=1.0, epoch=1_001.0)
    frame = Health("b1", 1, 700.0, {"GPU-0": "Xid 79"})
    early = await (await process()).take(frame, now=100.0, epoch=1_100.0)
    assert early is not None
    assert early.again
    await sync_to_async(Node.objects.update)(frame_stored_at=database_now() - timedelta(seconds=ago))
    again = await (await process()).take(frame, now=100.0, epoch=1_100.0)
    assert again is not None
    assert again.problem == ""
    assert await sync_to_async(state)() == ("H100", False, [])
