"""The kubelet's device checkpoint: which devices it gave to which containers (DEV-8).

Called by the agent, which sends what it reads as a `checkpoint` frame. The file (`CHECKPOINT`) is the kubelet's own record, so it tells of
pods that no scheduler of ours has seen. Understood, by Kubernetes' `pkg/kubelet/cm/devicemanager/checkpoint`:

    since 1.20   {"Data": {"PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName", "DeviceIDs": {"<NUMA node>": ["<id>"]}, …}], …}, "Checksum"}
    before       the same with "DeviceIDs": ["<id>"]

Kept true: a file that cannot be understood in whole tells nothing, since half an answer would look as if devices had come free; whoever reads it
keeps what was known before. The checksum is not compared: it is a hash of how Go prints the kubelet's types of that version, and the
kubelet replaces the file in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from agent.protocol import MOST_CHECKPOINT_ENTRIES, MOST_DEVICES, CheckpointEntry

CHECKPOINT: Final = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
BYTES_MOST: Final = 16 * 1024 * 1024
"""A container's entry has about a kilobyte, most of it the device plugin's answer."""
REPLICA: Final = "::"
"""A device plugin that shares a GPU by time appends this and a number to its UUID."""


class CheckpointUnreadable(Exception):
    """The file cannot be understood; the text says why, without what stands in it."""


class _Entry(msgspec.Struct):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName", default="")
    resource: str = msgspec.field(name="ResourceName", default="")
    devices: dict[str, list[str]] | list[str] | None = msgspec.field(name="DeviceIDs", default=None)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries")


class _File(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


_FILE: Final = msgspec.json.Decoder(_File)


def read_file(path: Path = CHECKPOINT) -> list[CheckpointEntry]:
    """The entries of the node's checkpoint; none where the kubelet has not written one. Raises CheckpointUnreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MOST + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointUnreadable(f"{path} cannot be read: {error.strerror}") from error
    return read_checkpoint(data)


def read_checkpoint(data: bytes) -> list[CheckpointEntry]:
    """The entries that hold devices, by pod, container and resource; devices in order of their ids, each once.

    A replica of a GPU that is shared by time counts as the GPU. Raises CheckpointUnreadable.
    """
    if len(data) > BYTES_MOST:
        raise CheckpointUnreadable(f"the checkpoint has more than {BYTES_MOST} bytes")
    try:
        listed = _FILE.decode(data).data.entries or []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
        raise CheckpointUnreadable(f"the checkpoint is not what a kubelet writes: {_cut(error)}") from error
    entries = [entry for one in listed if (entry := _entry(one)) is not None]
    if len(entries) > MOST_CHECKPOINT_ENTRIES:
        raise CheckpointUnreadable(f"the checkpoint has more than {MOST_CHECKPOINT_ENTRIES} entries")
    return sorted(entries, key=lambda entry: (entry.pod_uid, entry.container, entry.resource))


def _entry(one: _Entry) -> CheckpointEntry | None:
    ids = (
        [device for part in one.devices.values() for device in part]
        if isinstance(one.devices, Mapping)
        else one.devices
    )
    devices = sorted({device.partition(REPLICA)[0] for device in ids or ()})
    if not devices:
        return None
    if len(devices) > MOST_DEVICES:
        raise CheckpointUnreadable(f"the checkpoint gives more than {MOST_DEVICES} devices to one container")
    try:
        return msgspec.convert([one.pod_uid, one.container, one.resource, devices], CheckpointEntry)
    except msgspec.ValidationError as error:
        raise CheckpointUnreadable(f"an entry of the checkpoint is out of bounds: {_cut(error)}") from error


def _cut(error: Exception) -> str:
    return str(error)[:200]
