"""Whose devices are whose: an agent, a source of NICs, an inventory by PUT."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from agent.protocol import Frame, Inventory, Sample, decode_ack, encode
from nodes.inventory import parse_node
from nodes.live import flush, threads
from nodes.live.ingest import answer_frame
from nodes.live.samples import SampleTable
from nodes.models import Device, Node
from nodes.services import inventory_put
from storage.clock import database_now
from tests.unit.nodes.live.actors import AGENT


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "ensure_running", lambda: None)


@pytest.mark.usefixtures("ledger_db")
def test_what_an_agent_does_not_report_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-2 NICs and FPGAs that were PUT outlive an agent that sees GPUs alone; a source of NICs leaves GPUs, links
    and their order alone.
    """
    pool = ThreadPoolExecutor(max_workers=1)
    monkeypatch.setattr(threads, "_POOL", pool)
    gpus = [{"minor": m, "type": "gpu", "uuid": f"GPU-{m}", "model": "H100", "memory": "80Gi"} for m in (0, 1)]
    nic, fpga = {"minor": 0, "type": "rdma", "uuid": "NIC-0"}, {"minor": 0, "type": "fpga", "uuid": "FPGA-0"}
    put = {"name": "n1", "labels": {"zone": "a"}, "devices": [*gpus, nic, fpga], "links": [[0, 1, 18]]}
    mig = {**gpus[1], "minor": 1056, "uuid": "MIG-0", "parent": "GPU-0", "profile": "1g.10gb"}
    table = SampleTable()
    seen = []

    def there() -> set[str]:
        return set(Device.objects.exclude(presence="removed").values_list("uuid", flat=True))

    def say(frame: Frame) -> None:
        _, answer = asyncio.run(answer_frame(encode(frame), node="n1", actor=AGENT, table=table))
        assert decode_ack(answer).problem == ""
        seen.append(there())

    inventory_put(shape=parse_node(put), actor=AGENT, now=database_now())
    say(Inventory("b1", 1, 1.0, {"name": "n1", "devices": [*gpus, mig], "links": [[0, 1, 18]]}))
    say(Inventory("b1", 2, 2.0, {"name": "n1", "types": ["rdma"], "devices": [{**nic, "uuid": "NIC-1"}]}))
    links = Node.objects.get().links
    say(Inventory("b1", 3, 3.0, {"name": "n1", "types": ["gpu", "rdma"], "devices": gpus}))
    say(Sample("b1", 4, 4.0, power_watts=[70, 71]))
    pool.submit(connections.close_all).result()
    pool.shutdown()
    assert seen[0] == {"GPU-0", "GPU-1", "MIG-0", "NIC-0", "FPGA-0"}
    assert seen[1] == {"GPU-0", "GPU-1", "MIG-0", "NIC-1", "FPGA-0"}
    assert links == [[0, 1, 18]]
    assert seen[2] == {"GPU-0", "GPU-1", "FPGA-0"}
    assert table.latest()["n1"].devices == ("GPU-0", "GPU-1")
    inventory_put(shape=parse_node({"name": "n1", "devices": gpus}), actor=AGENT, now=database_now())
    assert there() == {"GPU-0", "GPU-1"}  # by PUT without types the node has exactly that
