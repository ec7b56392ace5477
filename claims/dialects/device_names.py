"""Maps others' names of a node's GPUs to its devices: device plugins' ids in a kubelet's checkpoint, words in a pod's
env.

Supported, besides a device's UUID:

    GPU-…::2, MIG-…::0                    a replica of it (NVIDIA's device plugin, sharing by time)
    GPU-…-3, GPU-…__3                     one of the parts into which HAMi's, Volcano's and nvshare's plugins split it
    GPU-…[1-0]                            a MIG instance that HAMi makes by itself, of this GPU
    nvidia0, nvidia0/vgpu2, /dev/nvidia0  by its device file, as Google's device plugin names it; `/vgpu…`: time-sliced
    nvidia0/gi3, MIG-GPU-…/3/0            a MIG instance of it, by the numbers of its GPU instance and compute instance
    MIG-…                                 a MIG instance by its UUID, where an agent has said of which GPU it is
    2, 2:0                                in env only: the GPU with this minor, a MIG instance of it

Invariants: a MIG instance that the inventory lacks is mapped to its GPU, which is then not free either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from claims.dialects.grants import NamedDevice
from kube.device_types import GPU

MIG_MINORS: Final = 1000
_REPLICA: Final = "::"
_PART: Final = re.compile(r"[-_/.]{1,2}[0-9]{1,5}|\[[^\]]{1,40}\]")
_FILE: Final = re.compile(
    r"(?:/dev/)?nvidia(?P<minor>[0-9]{1,3})(?:/gi(?P<gi>[0-9]{1,2})(?:/ci(?P<ci>[0-9]{1,2}))?)?(?:/vgpu[0-9]{1,4})?"
)
_OLD_MIG: Final = re.compile(r"MIG-(?P<uuid>.+)/(?P<gi>[0-9]{1,2})/(?P<ci>[0-9]{1,2})")
_PLACE: Final = re.compile(r"(?P<minor>[0-9]{1,6})(?P<mig>:[0-9]{1,2})?")


class DeviceView(NamedDevice, Protocol):
    """A device of the node; implemented by `nodes.models.Device`."""

    @property
    def parent(self) -> str:
        """Of a MIG instance: UUID of its GPU."""


def mig_minor(parent: int, gpu_instance: int, compute_instance: int) -> int:
    """The minor of a MIG instance in the inventory."""
    return MIG_MINORS + 128 * parent + 8 * gpu_instance + compute_instance


class Names:
    """The devices of a node by all their names."""

    def __init__(self, devices: Iterable[DeviceView], *, migs: Callable[[], Mapping[str, str]] = dict) -> None:
        """`migs`: UUIDs of MIG instances → those of their GPUs, as agents report; called only if no other rule
        matches.
        """
        self._by_uuid = {device.uuid: device for device in devices}
        gpus = [device for device in self._by_uuid.values() if device.type == GPU]
        self._whole = {device.minor: device.uuid for device in gpus if not device.parent}
        self._instances = {(device.parent, device.minor): device.uuid for device in gpus if device.parent}
        self._migs = migs

    def __contains__(self, uuid: object) -> bool:
        """Whether the node has a device with this UUID."""
        return uuid in self._by_uuid

    def find(self, word: str, *, env: bool = False) -> str | None:
        """The UUID of the device with this name, or None. `env`: numbers are minors."""
        word = word.partition(_REPLICA)[0]
        if word in self._by_uuid:
            return word
        old = _OLD_MIG.fullmatch(word)
        if old is not None and old["uuid"] in self._by_uuid:
            return self._instance(old["uuid"], int(old["gi"]), int(old["ci"]))
        named = _FILE.fullmatch(word)
        if named is not None:
            uuid = self._whole.get(int(named["minor"]))
            return self._instance(uuid, int(named["gi"]), int(named["ci"] or 0)) if uuid and named["gi"] else uuid
        place = _PLACE.fullmatch(word) if env else None
        if place is not None:
            return self._by_minor(int(place["minor"]), whole=place["mig"] is not None)
        return self._part(word) or self._of_agent(word)

    def _by_minor(self, minor: int, *, whole: bool) -> str | None:
        if whole or minor in self._whole:
            return self._whole.get(minor)
        return next((uuid for (_, number), uuid in self._instances.items() if number == minor), None)

    def _instance(self, parent: str, gpu_instance: int, compute_instance: int) -> str:
        """The instance if the inventory has it, else its GPU."""
        minor = mig_minor(self._by_uuid[parent].minor, gpu_instance, compute_instance)
        return self._instances.get((parent, minor), parent)

    def _part(self, word: str) -> str | None:
        """The device whose UUID, the longest one, is followed by the number of a part."""
        matching = (uuid for uuid in self._by_uuid if word.startswith(uuid) and _PART.fullmatch(word[len(uuid) :]))
        return max(matching, key=len, default=None)

    def _of_agent(self, word: str) -> str | None:
        if not word.startswith("MIG-"):
            return None
        parent = self._migs().get(word)
        return parent if parent in self._by_uuid else None
