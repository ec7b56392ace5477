"""The library of tests/fakes/nvml behind the real binding, and a source on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml_stub import Stub, behind_pynvml
from tests.unit.agent.library import Look


@pytest.fixture
def stub() -> Iterator[Stub]:
    with behind_pynvml() as made:
        yield made


@pytest.fixture
def look(stub: Stub, tmp_path: Path) -> Iterator[Look]:
    made = Look(stub, tmp_path)
    yield made
    made.source.close()
