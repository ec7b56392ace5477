"""The part of an imitated kubelet that gives GPUs to pods, and its record of them."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.containers import GPU

Behaviour = Literal["as usual", "never", "late", "other", "UnexpectedAdmissionError", "OutOfnvidia.com/gpu"]
"""Of a node, for reservation pods to come: their program runs, never starts, starts when `late` is set, or names the
UUID `other`; or every pod that asks for GPUs is refused with this reason.
"""


@dataclass
class DeviceManager:
    """Of one node. `record`: pod UID → its GPUs. `choices`: for the pods to come, one each. `kept`: pod name → GPUs
    that every pod of that name gets, and no other pod.
    """

    gpus: tuple[str, ...]
    record: dict[str, tuple[str, ...]] = field(default_factory=dict)
    choices: deque[tuple[str, ...]] = field(default_factory=deque)
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    behaviour: Behaviour = "as usual"
    other: str = "GPU-of-nobody"

    def free(self) -> list[str]:
        """GPUs that no pod has."""
        taken = {gpu for gpus in self.record.values() for gpu in gpus}
        return [gpu for gpu in self.gpus if gpu not in taken]

    def choice(self, pod: str, wanted: int, by: random.Random) -> tuple[str, ...]:
        """The GPUs that a pod of this name gets: as the test says, or any free ones, sorted."""
        if pod in self.kept:
            return self.kept[pod]
        if self.choices:
            return self.choices.popleft()
        kept = {gpu for gpus in self.kept.values() for gpu in gpus}
        return tuple(sorted(by.sample([gpu for gpu in self.free() if gpu not in kept], wanted)))

    def checkpoint(self) -> Json:
        """The record in the format of the kubelet's file."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": "main",
                "ResourceName": GPU,
                "DeviceIDs": {"-1": list(gpus)},
                "AllocResp": "",
            }
            for uid, gpus in self.record.items()
        ]
        return {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {GPU: list(self.gpus)}}, "Checksum": 0}
