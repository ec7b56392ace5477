"""What others call our GPUs."""

from typing import NamedTuple

import pytest

from claims.dialects.device_names import Names, mig_minor


class Device(NamedTuple):
    uuid: str
    minor: int
    parent: str = ""
    type: str = "gpu"


DEVICES = [
    Device("GPU-aa", 0),
    Device("GPU-aa-1", 1),
    Device("GPU-bb", 2),
    Device("MIG-b1", mig_minor(2, 3, 0), "GPU-bb"),
    Device("NIC-0", 0, type="rdma"),
]


@pytest.mark.parametrize(
    ("word", "want"),
    [
        pytest.param("GPU-aa", "GPU-aa", id="a UUID"),
        pytest.param("GPU-aa::0", "GPU-aa", id="a replica"),
        pytest.param("GPU-aa-3", "GPU-aa", id="a part, by HAMi or Volcano"),
        pytest.param("GPU-aa-1", "GPU-aa-1", id="a UUID that looks like a part"),
        pytest.param("GPU-aa-1-0", "GPU-aa-1", id="a part of that one"),
        pytest.param("GPU-aa__2", "GPU-aa", id="a part, by nvshare"),
        pytest.param("GPU-aa[1-0]", "GPU-aa", id="a MIG instance that HAMi makes"),
        pytest.param("GPU-aab", None, id="another UUID that begins so"),
        pytest.param("GPU-aa-x", None, id="no number of a part"),
        pytest.param("nvidia1", "GPU-aa-1", id="a device file"),
        pytest.param("/dev/nvidia1", "GPU-aa-1", id="a device file by its path"),
        pytest.param("nvidia1/vgpu7", "GPU-aa-1", id="a device file, shared by time"),
        pytest.param("nvidia2/gi3", "MIG-b1", id="a GPU instance"),
        pytest.param("nvidia2/gi3/vgpu0", "MIG-b1", id="a GPU instance, shared by time"),
        pytest.param("nvidia2/gi5", "GPU-bb", id="a GPU instance that the inventory lacks"),
        pytest.param("nvidia9", None, id="a device file that is not there"),
        pytest.param("nvidia9/gi1", None, id="an instance of a GPU that is not there"),
        pytest.param("nvidiactl", None, id="no device"),
        pytest.param("MIG-b1", "MIG-b1", id="a MIG instance"),
        pytest.param("MIG-b1::1", "MIG-b1", id="a MIG instance, shared by time"),
        pytest.param("MIG-GPU-bb/3/0", "MIG-b1", id="a MIG instance by its old name"),
        pytest.param("MIG-GPU-bb/5/0", "GPU-bb", id="by its old name, and the inventory lacks it"),
        pytest.param("MIG-GPU-zz/5/0", None, id="by its old name, of a GPU that is not there"),
        pytest.param("MIG-told", "GPU-bb", id="a MIG instance of which an agent told"),
        pytest.param("MIG-elsewhere", None, id="a MIG instance of a GPU that is not there"),
        pytest.param("MIG-none", None, id="a MIG instance of which nobody told"),
        pytest.param("NIC-0", "NIC-0", id="another type"),
        pytest.param("2", None, id="a number, in a record"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_names(word: str, want: str | None) -> None:
    """DEV-8 DEV-9 every name leads to the one device that it may mean, or to none."""
    names = Names(DEVICES, migs=lambda: {"MIG-told": "GPU-bb", "MIG-elsewhere": "GPU-zz"})
    assert names.find(word) == want


@pytest.mark.parametrize(
    ("word", "want"),
    [("2", "GPU-bb"), ("02", "GPU-bb"), ("2:0", "GPU-bb"), ("9", None), ("1408", None), ("1280", "MIG-b1")],
)
def test_numbers_in_env(word: str, want: str | None) -> None:
    """DEV-9 by minor; the place of a MIG instance is not told by any inventory, so it is its GPU."""
    assert Names(DEVICES).find(word, env=True) == want


def test_minor_of_an_instance() -> None:
    assert mig_minor(2, 3, 1) == 1000 + 256 + 24 + 1
