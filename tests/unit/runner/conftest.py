"""A machine for each test, on which no process is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runner.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.kill_all()
