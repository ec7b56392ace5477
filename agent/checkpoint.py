"""Reads the kubelet's device checkpoint: which devices it gave to which containers (DEV-8).

Called by the agent, which sends the entries. The file (`CHECKPOINT`) also covers pods that our scheduler has not seen.
Its format is that of Kubernetes' `pkg/kubelet/cm/devicemanager/checkpoint`:

    since 1.20   {"Data": {"PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName",
                  "DeviceIDs": {"<NUMA node>": ["<id>"]}, …}], …}, "Checksum"}
    before       the same with "DeviceIDs": ["<id>"]

Invariants: a file that is invalid in part is refused as a whole, since missing entries would look like devices that
came free. The checksum is not verified: it is a hash of how Go prints that kubelet version's types, and the kubelet
replaces the file atomically.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from agent.protocol import MOST_CHECKPOINT_ENTRIES, MOST_DEVICES, CheckpointEntry

CHECKPOINT: Final = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
BYTES_MOST: Final = 16 * 1024 * 1024
"""An entry has about a kilobyte, most of it the device plugin's answer."""
REPLICA: Final = "::"
"""A device plugin that shares a GPU by time appends this and a number to its UUID."""


class CheckpointUnreadable(Exception):
    """The file is invalid; the text says why, without quoting it."""


class CheckpointNotRead(CheckpointUnreadable):
    """The operating system did not let it be read; it may the next time."""


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
    """The entries of the file; none where there is no file. Raises CheckpointUnreadable, CheckpointNotRead."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MOST + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointNotRead(f"{path} cannot be read: {error.strerror}") from error
    return read_checkpoint(data)


def read_checkpoint(data: bytes) -> list[CheckpointEntry]:
    """The entries with devices, by pod, container and resource; devices by id, each once.

    A replica of a time-sliced GPU counts as the GPU. Raises CheckpointUnreadable.
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
