"""The kubelet's device checkpoint: both of its formats, and files that are none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.checkpoint import BYTES_MOST, CheckpointUnreadable, read_checkpoint, read_file
from agent.protocol import MOST_CHECKPOINT_ENTRIES, MOST_DEVICES, CheckpointEntry

RESPONSE = "CiUKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSC0dQVS1tYWRlLXVw"
"""What a device plugin answered, which is of no interest here."""


def entry(
    devices: Any, *, pod: str = "pod-1", container: str = "main", resource: str = "nvidia.com/gpu"
) -> dict[str, Any]:
    return {
        "PodUID": pod,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": devices,
        "AllocResp": RESPONSE,
    }


def file(*entries: Any, **data: Any) -> bytes:
    registered = {"nvidia.com/gpu": ["GPU-a", "GPU-b", "GPU-c"]}
    return json.dumps(
        {
            "Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": registered, **data},
            "Checksum": 1234567890,
        }
    ).encode()


def held(
    *devices: str, pod: str = "pod-1", container: str = "main", resource: str = "nvidia.com/gpu"
) -> CheckpointEntry:
    return CheckpointEntry(pod, container, resource, list(devices))


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(
            file(entry({"0": ["GPU-a"], "1": ["GPU-b"]}), entry({"-1": ["GPU-c"]}, pod="pod-0")),
            [held("GPU-c", pod="pod-0"), held("GPU-a", "GPU-b")],
            id="by NUMA node",
        ),
        pytest.param(
            file(entry(["GPU-b", "GPU-a"]), entry(["GPU-c"], container="beside")),
            [held("GPU-c", container="beside"), held("GPU-a", "GPU-b")],
            id="the older format",
        ),
        pytest.param(
            file(entry({"0": ["GPU-a::0", "GPU-a::3", "GPU-b::1"]})), [held("GPU-a", "GPU-b")], id="replicas by time"
        ),
        pytest.param(
            file(
                entry({"0": ["MIG-1"]}, resource="nvidia.com/mig-1g.10gb"), entry({"0": ["nic-7"]}, resource="rdma/hca")
            ),
            [held("MIG-1", resource="nvidia.com/mig-1g.10gb"), held("nic-7", resource="rdma/hca")],
            id="other resources",
        ),
        pytest.param(
            file(entry({}), entry({"0": []}, pod="x"), entry(None, pod="y")), [], id="entries without devices"
        ),
        pytest.param(file(), [], id="no entries"),
        pytest.param(
            b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}', [], id="null, as Go writes none"
        ),
        pytest.param(
            file(entry({"0": ["GPU-a"]}), Added={"by": "a newer kubelet"}), [held("GPU-a")], id="more than we know"
        ),
        pytest.param(
            json.dumps({"Data": {"PodDeviceEntries": [entry(["GPU-a"])]}}).encode(), [held("GPU-a")], id="no checksum"
        ),
    ],
)
def test_what_the_kubelet_gave(data: bytes, want: list[CheckpointEntry]) -> None:
    """DEV-8 (part) who holds which devices, in either format, whatever the checksum."""
    assert read_checkpoint(data) == want


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "not what a kubelet writes", id="empty"),
        pytest.param(b"\x00\x01\xff", "not what a kubelet writes", id="no JSON"),
        pytest.param(
            b'{"Data": {"PodDeviceEntries": [{"PodUID": "\xff"}]}}', "not what a kubelet writes", id="no UTF-8"
        ),
        pytest.param(b"[]", "not what a kubelet writes", id="a list"),
        pytest.param(b"{}", "not what a kubelet writes", id="no data"),
        pytest.param(b'{"Data": {}}', "not what a kubelet writes", id="no entries"),
        pytest.param(
            b'{"policyName":"static","entries":{},"checksum":1}', "not what a kubelet writes", id="another state file"
        ),
        pytest.param(file({"ContainerName": "main"}), "not what a kubelet writes", id="no pod"),
        pytest.param(file(entry("GPU-a")), "not what a kubelet writes", id="a device that is no list"),
        pytest.param(file(entry({"0": [7]})), "not what a kubelet writes", id="a number as a device"),
        pytest.param(b"[" * 100_000, "not what a kubelet writes", id="nested without end"),
        pytest.param(file(entry(["GPU-a"], pod="")), "out of bounds", id="an empty UID"),
        pytest.param(file(entry(["GPU-a"], resource="")), "out of bounds", id="no resource"),
        pytest.param(file(entry(["x" * 129])), "out of bounds", id="a long device"),
        pytest.param(
            file(entry([f"GPU-{number}" for number in range(MOST_DEVICES + 1)])),
            f"more than {MOST_DEVICES} devices",
            id="too many devices",
        ),
        pytest.param(
            file(*(entry(["GPU-a"], pod=f"pod-{number}") for number in range(MOST_CHECKPOINT_ENTRIES + 1))),
            f"more than {MOST_CHECKPOINT_ENTRIES} entries",
            id="too many entries",
        ),
        pytest.param(b" " * (BYTES_MOST + 1), f"more than {BYTES_MOST} bytes", id="huge"),
    ],
)
def test_files_that_are_none(data: bytes, why: str) -> None:
    """DEV-8 (part) what cannot be understood in whole tells nothing, with the reason."""
    with pytest.raises(CheckpointUnreadable, match=why):
        read_checkpoint(data)


def test_no_part_of_a_file_passes_for_the_whole() -> None:
    """DEV-8 (part) a file that was cut off anywhere is refused: half of it would look as if devices had come free."""
    whole = file(entry({"0": ["GPU-a"]}), entry(["GPU-b"], pod="pod-2"))
    for length in range(len(whole)):
        with pytest.raises(CheckpointUnreadable):
            read_checkpoint(whole[:length])


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda one: json.dumps(one).encode())
)
def test_nothing_else_is_raised(data: bytes) -> None:
    """DEV-8 (part) whatever the file holds."""
    with contextlib.suppress(CheckpointUnreadable):
        assert isinstance(read_checkpoint(data), list)


def test_the_file_on_the_node(tmp_path: Path) -> None:
    """DEV-8 (part) a kubelet that never gave a device has no file; one that may not be read is told."""
    assert read_file(tmp_path / "none") == []
    there = tmp_path / "kubelet_internal_checkpoint"
    there.write_bytes(file(entry({"0": ["GPU-a"]})))
    assert read_file(there) == [held("GPU-a")]
    with pytest.raises(CheckpointUnreadable, match="cannot be read"):
        read_file(tmp_path)
