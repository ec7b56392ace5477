"""Which GPUs are the container's own, by the driver's files and NVIDIA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.reserve.gpus import Gpu, NotYet, address_order, own_uuids

INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 205
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.5e.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
Device Minor: \t {minor}
GPU Excluded:\t No
"""
EIGHT = {f"0000:{0x10 + minor:02x}:00.0": (f"GPU-{minor}", minor) for minor in range(8)}


def _proc(folder: Path, gpus: Mapping[str, tuple[str, int] | str]) -> Path:
    """The driver's folder with these GPUs by address: UUID and minor, or the whole text of the file."""
    proc = folder / "nvidia"
    for address, one in gpus.items():
        path = proc / "gpus" / address / "information"
        path.parent.mkdir(parents=True)
        path.write_text(one if isinstance(one, str) else INFORMATION.format(uuid=one[0], minor=one[1]))
    return proc


def _no_nvml() -> list[Gpu]:
    raise NotYet("no NVML")


def _own(
    folder: Path,
    gpus: Mapping[str, tuple[str, int] | str],
    *,
    count: int | None = 1,
    visible: str = "",
    devices: tuple[int, ...] = (),
    nvml: Any = _no_nvml,
) -> tuple[str, ...]:
    dev = folder / "dev"
    dev.mkdir()
    for minor in devices:
        (dev / f"nvidia{minor}").touch()
    return own_uuids(count=count, visible=visible, proc=_proc(folder, gpus), dev=dev, nvml=nvml)


ONE = {"0000:3b:00.0": ("GPU-a", 3)}
THREE = {"00010000:01:00.0": ("GPU-c", 0), "0000:ff:00.0": ("GPU-b", 1), "0000:3b:00.0": ("GPU-a", 2)}


@pytest.mark.parametrize(
    ("gpus", "options", "want"),
    [
        pytest.param(ONE, {}, ("GPU-a",), id="one GPU"),
        pytest.param(ONE, {"visible": "all"}, ("GPU-a",), id="all, of which one is shown"),
        pytest.param(ONE, {"visible": "void"}, ("GPU-a",), id="void: devices by CDI"),
        pytest.param(ONE, {"visible": "GPU-a"}, ("GPU-a",), id="by UUID"),
        pytest.param(ONE, {"visible": "5"}, ("GPU-a",), id="an index of the node, where others are hidden"),
        pytest.param(ONE, {"count": None}, ("GPU-a",), id="the pod does not say how many"),
        pytest.param(THREE, {"count": 3}, ("GPU-a", "GPU-b", "GPU-c"), id="several, by PCI address"),
        pytest.param(THREE, {"count": 3, "visible": "2,0,1"}, ("GPU-a", "GPU-b", "GPU-c"), id="by indices"),
        pytest.param(THREE, {"count": None}, ("GPU-a", "GPU-b", "GPU-c"), id="several, number unknown"),
        pytest.param(EIGHT, {"visible": "GPU-5"}, ("GPU-5",), id="all are shown, one is named"),
        pytest.param(EIGHT, {"visible": "5"}, ("GPU-5",), id="all are shown, one is named by index"),
        pytest.param(EIGHT, {"count": 2, "visible": " GPU-7 ,GPU-2,"}, ("GPU-2", "GPU-7"), id="two, by PCI address"),
        pytest.param(EIGHT, {"count": 2, "visible": "7,GPU-7,0"}, ("GPU-0", "GPU-7"), id="one of them named twice"),
        pytest.param(EIGHT, {"visible": "all", "devices": (6,)}, ("GPU-6",), id="all are shown, one has a device file"),
        pytest.param(EIGHT, {"count": 2, "visible": "void", "devices": (6, 1)}, ("GPU-1", "GPU-6"), id="two by CDI"),
        pytest.param(EIGHT, {"count": 8, "visible": "all"}, tuple(f"GPU-{n}" for n in range(8)), id="the whole node"),
        pytest.param(
            {**ONE, "0000:3c:00.0": "Model: broken\n"},
            {"visible": "GPU-a"},
            ("GPU-a",),
            id="another one's file is broken",
        ),
        pytest.param(
            {"0000:01:00.0": "no UUID", **EIGHT}, {"visible": "1"}, ("GPU-0",), id="a broken file keeps its place"
        ),
    ],
)
def test_own_gpus(gpus: Any, options: dict[str, Any], want: tuple[str, ...], tmp_path: Path) -> None:
    """SHARE-4"""
    assert _own(tmp_path, gpus, **options) == want


@pytest.mark.parametrize(
    ("gpus", "options", "want_why"),
    [
        pytest.param({}, {}, "the driver shows no GPU", id="no driver yet"),
        pytest.param({"0000:3b:00.0": "Model: x\n"}, {}, "has no line GPU UUID", id="no line with the UUID"),
        pytest.param({"0000:3b:00.0": "GPU UUID:\n"}, {}, "has no line GPU UUID", id="an empty UUID"),
        pytest.param(
            {"0000:3b:00.0": "GPU UUID: GPU-????????-????-????-????-????????????\n"},
            {},
            "does not tell the UUID yet",
            id="a GPU that nobody has opened",
        ),
        pytest.param({"0000:3b:00.0": "GPU UUID: GPU a\n"}, {}, "does not tell the UUID", id="a UUID with a space"),
        pytest.param({"0000:3b:00.0": f"GPU UUID: {'a' * 129}"}, {}, "does not tell the UUID", id="a UUID too long"),
        pytest.param(EIGHT, {"count": 1}, "found 0 GPUs, the pod has 1", id="all are shown, nothing says which"),
        pytest.param(EIGHT, {"count": 1, "devices": (1, 2)}, "found 2 GPUs, the pod has 1", id="too many device files"),
        pytest.param(ONE, {"count": 2}, "found 1 GPUs, the pod has 2", id="the other one is not there yet"),
        pytest.param(ONE, {"visible": "GPU-b"}, "names 'GPU-b', which the driver does not show", id="forged by UUID"),
        pytest.param(EIGHT, {"visible": "8"}, "names '8', which the driver does not show", id="forged by index"),
        pytest.param(EIGHT, {"visible": "-1"}, "names '-1'", id="a negative index"),
        pytest.param(EIGHT, {"visible": "9" * 5000}, "which the driver does not show", id="a long number"),
        pytest.param(EIGHT, {"visible": "../../etc"}, "names '../../etc'", id="forged by a path"),
        pytest.param(EIGHT, {"count": 1, "visible": "GPU-1,GPU-2"}, "found 2 GPUs, the pod has 1", id="two named"),
        pytest.param(ONE, {"visible": "MIG-a"}, "names MIG instances", id="a MIG instance, without NVML"),
    ],
)
def test_nothing_is_guessed(gpus: Any, options: dict[str, Any], want_why: str, tmp_path: Path) -> None:
    """SHARE-4 rather none than a GPU of somebody else."""
    with pytest.raises(NotYet) as waited:
        _own(tmp_path, gpus, **options)
    assert want_why in str(waited.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """SHARE-4"""
    (_proc(tmp_path, {"0000:3b:00.0": ("GPU-a", 0)}) / "gpus/0000:3b:00.0/information").unlink()
    (tmp_path / "nvidia/gpus/0000:3b:00.0/information").mkdir()
    with pytest.raises(NotYet, match="information cannot be read: Is a directory"):
        own_uuids(count=1, visible="", proc=tmp_path / "nvidia", dev=tmp_path, nvml=_no_nvml)


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    """SHARE-4"""
    folder = tmp_path / "nvidia"
    folder.mkdir()
    (folder / "gpus").symlink_to("gpus")
    with pytest.raises(NotYet, match="gpus cannot be read: Too many levels"):
        own_uuids(count=1, visible="", proc=folder, dev=tmp_path, nvml=_no_nvml)


PARTED = [
    Gpu("00000000:10:00.0", "GPU-0", 0, parts=("MIG-00", "", "MIG-02")),
    Gpu("00000000:11:00.0", "GPU-1", 1),
    Gpu("00000000:12:00.0", "GPU-2", 2, parts=("MIG-GPU-2/1/0",)),
]


@pytest.mark.parametrize(
    ("count", "visible", "want"),
    [
        pytest.param(1, "MIG-02", ("MIG-02",), id="by UUID"),
        pytest.param(1, "MIG-GPU-2/1/0", ("MIG-GPU-2/1/0",), id="by the name of older drivers"),
        pytest.param(1, "0:2", ("MIG-02",), id="by index"),
        pytest.param(2, "MIG-GPU-2/1/0,MIG-02", ("MIG-02", "MIG-GPU-2/1/0"), id="two, by their GPUs' addresses"),
        pytest.param(2, "MIG-02,0:0", ("MIG-00", "MIG-02"), id="two of one GPU, by index"),
        pytest.param(2, "0:0,GPU-1", ("MIG-00", "GPU-1"), id="an instance and a whole GPU"),
    ],
)
def test_mig_instances_by_nvml(count: int, visible: str, want: tuple[str, ...], tmp_path: Path) -> None:
    """SHARE-4 DEV-12 the files show the GPU, NVML its instances."""
    shown = {"0000:10:00.0": ("GPU-0", 0)}
    assert _own(tmp_path, shown, count=count, visible=visible, nvml=lambda: PARTED) == want


@pytest.mark.parametrize("visible", ["MIG-03", "0:1", "0:3", "1:0", "3:0", "0:x", "MIG-GPU-2/2/0"])
def test_mig_instances_that_are_not_there(visible: str, tmp_path: Path) -> None:
    """SHARE-4 DEV-12"""
    with pytest.raises(NotYet, match="which the driver does not show"):
        _own(tmp_path, {"0000:10:00.0": ("GPU-0", 0)}, visible=visible, nvml=lambda: PARTED)


def test_nvml_tells_what_the_files_do_not_tell_yet(tmp_path: Path) -> None:
    """SHARE-4 until somebody opens a GPU its UUID is not in the file."""
    shown = {"0000:10:00.0": "GPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 0\n"}
    assert _own(tmp_path, shown, nvml=lambda: [Gpu("00000000:10:00.0", "GPU-0", 0)]) == ("GPU-0",)


def test_nvml_is_not_asked_where_the_files_are_enough(tmp_path: Path) -> None:
    """SHARE-4"""

    def asked() -> list[Gpu]:
        raise AssertionError("NVML was asked")

    assert _own(tmp_path, ONE, nvml=asked) == ("GPU-a",)


def test_a_gpu_that_does_not_answer_by_nvml(tmp_path: Path) -> None:
    """SHARE-4"""
    with pytest.raises(NotYet, match="the driver shows no GPU; NVML: GPU 0 does not answer"):
        _own(tmp_path, {}, nvml=lambda: [Gpu("0", "", problem="GPU 0 does not answer")])


@given(
    visible=st.lists(st.sampled_from(["all", "0", "7", "8", "GPU-1", "GPU-9", "MIG-1", "1:0", "", "x"])).map(",".join),
    count=st.none() | st.integers(1, 9),
    shown=st.sets(st.sampled_from(sorted(EIGHT)), max_size=8),
)
def test_only_what_the_driver_shows_comes_out(visible: str, count: int | None, shown: set[str]) -> None:
    """SHARE-4 whatever the environment says: as many as the pod has, each once, in the order of the bus."""
    gpus = [Gpu(address, *EIGHT[address]) for address in sorted(shown)]
    try:
        found = own_uuids(count=count, visible=visible, proc=Path("/nowhere"), dev=Path("/nowhere"), nvml=lambda: gpus)
    except NotYet:
        return
    order = [gpu.uuid for gpu in gpus]
    assert list(found) == [uuid for uuid in order if uuid in found]
    assert count is None or len(found) == count


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param(["0000:00:00.0", "0000:0a:00.0", "0000:10:00.0", "0000:10:01.0", "0001:00:00.0"], id="plain"),
        pytest.param(["0000:ff:00.0", "0001:00:00.0", "00010000:01:00.0"], id="domains of two lengths"),
        pytest.param(["0000:ff:00.0", "a-name", "b:name"], id="names that are no addresses come last"),
    ],
)
def test_the_order_of_addresses(addresses: list[str]) -> None:
    shuffled = addresses[::-1]
    assert sorted(shuffled, key=address_order) == addresses
