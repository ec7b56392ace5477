"""Faults that the driver does not repeat, since it fails to say anything: they are not over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.sources import SourceAway
from agent.sources.nvml import NvmlSource
from tests.unit.agent.fake_nvml import Card, FakeNvml


class Failing(FakeNvml):
    """A driver that may fail to give the field values of every card, or gives them wrongly."""

    error: Exception | None = None

    def nvmlDeviceGetFieldValues(self, card: Card, asked: list[Any]) -> list[Any]:  # noqa: N802 - NVML's name
        if self.error is not None:
            raise self.error
        return super().nvmlDeviceGetFieldValues(card, asked)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN), id="the call fails"),
        pytest.param(ValueError("no answer"), id="the reading raises"),
    ],
)
@pytest.mark.parametrize(
    ("fault", "want"),
    [
        pytest.param({"remap_failed": 1}, "row remapping failed", id="row remapping"),
        pytest.param({"recovery": 1}, "the driver asks for a reset of the GPU", id="recovery action"),
        pytest.param({"ecc": (0, 3)}, "uncorrectable ECC errors since the driver was loaded", id="ECC"),
    ],
)
def test_a_fault_that_cannot_be_read_now_stays(
    tmp_path: Path, fault: dict[str, Any], want: str, error: Exception
) -> None:
    """NODE-1 the GPU is well once the driver says so, and not because it says nothing."""
    one, two = Card("GPU-0", 0, **fault), Card("GPU-1", 1)
    nv = Failing(one, two)
    source = NvmlSource(sys=tmp_path, nv=nv, clock=lambda: 0.0)
    machine = source.machine()
    assert source.read(machine).health == {"GPU-0": want}
    nv.error = error
    for _ in range(2):
        assert source.read(machine).health == {"GPU-0": want}
    nv.error = None
    one.remap_failed, one.recovery, one.ecc = 0, 0, (0, 0)
    assert source.read(machine).health == {}


def test_a_reloaded_driver_begins_anew(tmp_path: Path) -> None:
    """NODE-1 a fault of before is not kept over a reload, though the first reading after it fails."""
    nv = Failing(Card("GPU-0", 0, ecc=(0, 3)))
    source = NvmlSource(sys=tmp_path, nv=nv, clock=lambda: 0.0)
    machine = source.machine()
    assert source.read(machine).health
    nv.loaded = False
    with pytest.raises(SourceAway):
        source.read(machine)
    with pytest.raises(SourceAway):
        source.machine()
    nv.loaded, nv.error = True, pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    assert source.read(source.machine()).health == {}
