"""NVML's listing, with the real binding on the library of tests/fakes/nvml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.reserve import nvml
from agent.reserve.gpus import Gpu, NotYet, own_uuids
from tests.fakes.nvml_stub import Stub, behind_pynvml, library


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(nvml, "LIBRARY", str(library()))
    with behind_pynvml() as made:
        yield made


def test_gpus_and_their_instances(stub: Stub) -> None:
    """SHARE-4 DEV-12"""
    for minor in range(3):
        stub.gpu(minor)
    stub.say("mig 1 1", "part 1 0 1 0 5000 MIG-a 1g.10gb", "part 1 1 2 0 5000 - x", "part 1 2 3 0 5000 MIG-b 1g.10gb")
    found = nvml.listed()
    assert [(one.address, one.uuid, one.minor, one.problem) for one in found] == [
        (f"00000000:{0x10 + minor:x}:00.0", f"GPU-{minor}", minor, "") for minor in range(3)
    ]
    assert [one.parts for one in found][::2] == [None, None]
    assert (found[1].parts or ())[:3] == ("MIG-a", "", "MIG-b")
    assert stub.sessions == 1


@pytest.mark.parametrize(
    ("lines", "want_why"),
    [
        pytest.param(("driver 0",), "the driver does not answer: Driver Not Loaded", id="no driver"),
        pytest.param(("init 999",), "the driver does not answer: Unknown Error", id="a driver that fails"),
        pytest.param((), "the driver shows no GPU", id="no GPU"),
        pytest.param(
            ("gpu 0 GPU-0 00000000:10:00.0 x", "lose 0"), "GPU 0 does not answer: GPU is lost", id="a lost GPU"
        ),
    ],
)
def test_what_keeps_gpus_from_being_named(lines: tuple[str, ...], want_why: str, stub: Stub) -> None:
    """SHARE-4 it waits, and says for what."""
    stub.say(*lines)
    with pytest.raises(NotYet) as waited:
        own_uuids(count=1, visible="", proc=Path("/nowhere"), dev=Path("/nowhere"), nvml=nvml.listed)
    assert want_why in str(waited.value)


def test_a_driver_that_comes(stub: Stub) -> None:
    """SHARE-4 the library may be asked again after any failure."""
    stub.say("driver 0")
    with pytest.raises(NotYet):
        nvml.listed()
    stub.say("driver 1")
    stub.gpu(0)
    assert nvml.listed() == [Gpu("00000000:10:00.0", "GPU-0", 0)]


def test_without_the_library_the_binding_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-4"""

    def called() -> Any:
        raise AssertionError("the binding was used")

    monkeypatch.setattr(pynvml, "nvmlInit", called)
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    with pytest.raises(NotYet, match="the container has no NVML"):
        nvml.listed()
