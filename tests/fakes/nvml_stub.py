"""The library of tests/fakes/nvml, built with the machine's C compiler and put behind the real `pynvml`.

For tests of the NVML source: what the binding makes of the library's structs, value types and errors is then part of
the test.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pynvml
import pytest

SOURCE = Path(__file__).parent / "nvml" / "stub.c"
SONAME = "libnvidia-ml.so.1"
ALL_LINKS = 0xFFFFFFFF
"""The scope of a field that counts over all NVLinks of a GPU."""
HBM = 80 * 2**30
USED = 3 * 2**30
RESERVED = 600 * 2**20
_UINT = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
_ULONGLONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


@cache
def library(*, old: bool = False) -> Path:
    """The built library, in a folder of its own; skips the test where there is no compiler. `old`: without what drivers
    before 510 lack.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler (cc) on this machine to build the stand-in for libnvidia-ml with")
    folder = mkdtemp(prefix="gpuplane-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = Path(folder) / SONAME
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *(["-DNVML_STUB_OLD"] if old else [])]
    subprocess.run([compiler, *flags, "-o", str(built), str(SOURCE)], check=True, timeout=120)
    return built


class Stub:
    """The library with GPUs as a test says."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.stub_now.restype = ctypes.c_ulonglong
        self.say("reset")

    def say(self, *lines: str) -> None:
        """Change something: see tests/fakes/nvml/README.md."""
        for line in lines:
            assert self._library.stub_line(line.encode()) == 0, line

    @property
    def clock(self) -> float:
        """Seconds, by the library's own time."""
        return float(self._library.stub_now()) / 1e6

    @property
    def sessions(self) -> int:
        """How often the library was initialised."""
        return int(self._library.stub_sessions())

    def gpu(self, minor: int, *, model: str = "NVIDIA H100 80GB HBM3", links: int = 0) -> None:
        """One GPU, of which all NVLinks end at a switch."""
        self.say(*gpu_lines(minor, model=model, links=links))

    def field(
        self,
        minor: int,
        number: int,
        value: float,
        *,
        scope: int = 0,
        kind: int = _ULONGLONG,
        rate: float = 0,
        error: int = 0,
    ) -> None:
        """A field's value at the library's time 0, and what it gains a second."""
        self.say(f"field {minor} {number} {scope} {error} {kind} {value} {rate}")

    def nvlink_bytes(self, minor: int, number: int, *, links: int, rate_a_link: float) -> None:
        """A counter of each NVLink. The library adds them up for the scope of all."""
        for link in range(links):
            self.field(minor, number, 0, scope=link, rate=rate_a_link * (link + 1))


def gpu_lines(minor: int, *, model: str = "NVIDIA H100 80GB HBM3", links: int = 0) -> list[str]:
    """What makes one GPU, as text."""
    return [
        f"gpu {minor} GPU-{minor} 00000000:{0x10 + minor:02X}:00.0 {model}",
        f"memory {minor} {HBM} {USED} {RESERVED}",
        f"field {minor} {pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT} 0 0 {_UINT} {links} 0",
        *(f"link {minor} {link} 0 1 {pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH} 00000000:05:00.0" for link in range(links)),
    ]


@contextmanager
def behind_pynvml(*, old: bool = False) -> Iterator[Stub]:
    """A stub that the real binding has loaded; whatever it had before is back afterwards."""
    before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    stub = Stub(library(old=old))
    pynvml.nvmlLib = stub._library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield stub
    finally:
        pynvml.nvmlLib = before[0]
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(before[1])
