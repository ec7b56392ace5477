"""Which GPUs are this container's own.

Called by the program until the driver shows them. The driver lists GPUs in `<proc>/gpus/<PCI address>/information`:

    Model:           NVIDIA H100 80GB HBM3
    GPU UUID:        GPU-8a56c6b4-…
    Device Minor:    3

Usually the container runtime hides the GPUs of others there. Where it does not (a privileged container, devices by
CDI), `NVIDIA_VISIBLE_DEVICES` tells which are ours, or else the device files `/dev/nvidia<minor>`, of which a container
has its own only. While no program has opened a GPU, its UUID may read `GPU-????????-…`; NVML then opens it.

Invariant: what comes out was shown by the driver; the environment only selects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = "/proc/driver/nvidia"
DEV: Final = "/dev"
FILE_MOST: Final = 16 * 1024
GPUS_MOST: Final = 1024
MIG_PREFIX: Final = "MIG-"
SILENT: Final = frozenset({"", "all", "void", "none"})
"""Values of NVIDIA_VISIBLE_DEVICES that do not tell which GPUs are ours."""

_UUID: Final = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_ADDRESS_PART: Final = re.compile(r"[0-9a-f]+")


class NotYet(Exception):
    """The driver does not show the container's GPUs, at least not now; the text says what is missing."""


class Gpu(NamedTuple):
    """A GPU that the driver shows. `uuid` is empty where it cannot be read, and `problem` then says why."""

    address: str
    uuid: str
    minor: int = -1
    problem: str = ""
    parts: tuple[str, ...] | None = None
    """UUIDs of its MIG instances by index (empty: no such instance), None where it is not in MIG mode or unknown."""


Listing = Callable[[], Sequence[Gpu]]


def own_uuids(*, count: int | None, visible: str, proc: Path, dev: Path, nvml: Listing) -> tuple[str, ...]:
    """The UUIDs of the container's GPUs by PCI address; MIG instances by that of their GPU and their index.

    `count`: how many the pod was given, None where unknown. `visible`: NVIDIA_VISIBLE_DEVICES. `nvml` lists the GPUs by
    NVML; it is called only where the files are not enough. Raises NotYet.
    """
    words = _words(visible)
    try:
        files = tuple(listed_files(proc))
        # the files do not list MIG instances
        if not any(_is_part(word) for word in words):
            return _chosen(files, words, count, dev)
        why = "NVIDIA_VISIBLE_DEVICES names MIG instances"
    except NotYet as reason:
        why = str(reason)
    try:
        return _chosen(tuple(nvml()), words, count, dev)
    except NotYet as reason:
        raise NotYet(why if str(reason) in why else f"{why}; NVML: {reason}") from None


def listed_files(proc: Path) -> list[Gpu]:
    """The GPUs of the driver's files by PCI address; none where there is no driver. Raises NotYet."""
    folder = proc / "gpus"
    try:
        names = sorted((one.name for one in folder.iterdir()), key=address_order)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NotYet(f"{folder} cannot be read: {error.strerror}") from error
    if len(names) > GPUS_MOST:
        raise NotYet(f"{folder} lists more than {GPUS_MOST} GPUs")
    return [_gpu(name, folder / name / "information") for name in names]


def address_order(address: str) -> tuple[bool, tuple[int, ...], str]:
    """A key by which PCI addresses (`0000:3b:00.0`, `00010000:3b:00.0`) are in the order of the bus."""
    parts = address.lower().replace(".", ":").split(":")
    if not all(_ADDRESS_PART.fullmatch(part) for part in parts):
        return (True, (), address)
    return (False, tuple(int(part, 16) for part in parts), address)


def _gpu(address: str, path: Path) -> Gpu:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MOST).decode(errors="replace")
    except OSError as error:
        return Gpu(address, "", problem=f"{path} cannot be read: {error.strerror}")
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    minor = fields.get("Device Minor", "")
    number = int(minor) if minor.isdecimal() and len(minor) < 6 else -1
    uuid = fields.get("GPU UUID", "")
    if not uuid:
        return Gpu(address, "", number, f"{path} has no line GPU UUID")
    if not _UUID.fullmatch(uuid):
        return Gpu(address, "", number, f"{path} does not tell the UUID yet")
    return Gpu(address, uuid, number)


def _words(visible: str) -> tuple[str, ...]:
    """The devices that NVIDIA_VISIBLE_DEVICES names, each once; none where it does not tell."""
    text = visible.strip()
    if text.lower() in SILENT:
        return ()
    return tuple(dict.fromkeys(word for word in (part.strip() for part in text.split(",")) if word))


def _is_part(word: str) -> bool:
    """Whether it names a MIG instance: by UUID, or as `<GPU>:<instance>`."""
    return word.startswith(MIG_PREFIX) or (":" in word and not word.startswith("GPU-"))


def _chosen(shown: Sequence[Gpu], words: Sequence[str], count: int | None, dev: Path) -> tuple[str, ...]:
    """The own ones of those shown, by address. Raises NotYet."""
    if not shown:
        raise NotYet("the driver shows no GPU")
    own = _named(shown, words, count) if words else _unnamed(shown, count, dev)
    for one in own:
        if not one.uuid:
            raise NotYet(one.problem)
    if count is not None and len(own) != count:
        raise NotYet(f"found {len(own)} GPUs, the pod has {count}")
    return tuple(one.uuid for one in own)


def _named(shown: Sequence[Gpu], words: Sequence[str], count: int | None) -> list[Gpu]:
    """Those that the words select. Indices count all GPUs of the node, so they mean nothing where others are hidden."""
    if all(word.isdecimal() for word in words) and len(shown) == (count or len(words)):
        return list(shown)
    selected = [_selected(shown, word) for word in words]
    order = {one.address: number for number, one in enumerate(shown)}
    parts = {uuid: index for one in shown for index, uuid in enumerate(one.parts or ())}
    return sorted(dict.fromkeys(selected), key=lambda one: (order[one.address], parts.get(one.uuid, -1)))


def _selected(shown: Sequence[Gpu], word: str) -> Gpu:
    """The GPU, or a MIG instance as one. Raises NotYet."""
    for gpu in shown:
        if word == gpu.uuid:
            return gpu
        if word in (gpu.parts or ()):
            return Gpu(gpu.address, word)
    index, _, part = word.partition(":")
    if index.isdecimal() and len(index) < 6 and int(index) < len(shown):
        gpu = shown[int(index)]
        if not part:
            return gpu
        parts = gpu.parts or ()
        if part.isdecimal() and len(part) < 6 and int(part) < len(parts) and parts[int(part)]:
            return Gpu(gpu.address, parts[int(part)])
    raise NotYet(f"NVIDIA_VISIBLE_DEVICES names {word[:64]!r}, which the driver does not show")


def _unnamed(shown: Sequence[Gpu], count: int | None, dev: Path) -> list[Gpu]:
    """All, where these are no more than the pod has; else those with a device file in this container."""
    if count is None or len(shown) <= count:
        return list(shown)
    return [one for one in shown if one.minor >= 0 and (dev / f"nvidia{one.minor}").exists()]
