"""What the make-believe GPUs tell beyond their figures: NVLinks with their far ends, a process for each holder.

Called by `agents`. Kept true: links are those of the node's inventory; a GPU that nobody holds has no process; the same holders give the same processes.
"""

from __future__ import annotations

from typing import Final

from agent.protocol import DeviceDetails, LinkDetails, ProcessDetails
from agent.sources.wiring import remotes_of
from simulator.fleet import Gpu, SimNode
from simulator.signals import Signals

FIRST_PID: Final = 20_000
MIB: Final = 2**20


def details_of(node: SimNode, signals: Signals) -> list[DeviceDetails]:
    """Of the node's GPUs by minor."""
    uuids = {gpu.minor: gpu.uuid for gpu in node.gpus}
    return [_one(node, gpu, uuids, signals) for gpu in node.gpus]


def _one(node: SimNode, gpu: Gpu, uuids: dict[int, str], signals: Signals) -> DeviceDetails:
    remotes = remotes_of(node.kind.links, gpu.minor, uuids=uuids, own=node.kind.gpu_links)
    links = [LinkDetails(number, True, remote, 0, 0, 0) for number, remote in enumerate(remotes)]
    size = signals.memory_of(gpu.uuid)
    processes = [
        ProcessDetails(
            FIRST_PID + 100 * gpu.minor + place,
            "python3" if load.peers > 1 else "vllm",
            round(0.9 * load.memory * size) // MIB * MIB,
        )
        for place, load in enumerate(signals.loads.get(signals.row_of[gpu.uuid], ()))
    ]
    return DeviceDetails(links, 0, 0, processes)
