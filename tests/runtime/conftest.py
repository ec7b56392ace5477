"""Builds the runtime where it is not there, writes the models, and starts a machine that has both."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from tests.runner_machine import Machine, machine_of
from tests.runtime import tools
from tests.servers import redis
from tests.servers.web import LiveApp
from tests.slots import SlotWorld


@pytest.fixture(scope="session")
def python() -> str:
    """The Python that has llama.cpp."""
    return tools.python()


@pytest.fixture(scope="session")
def models(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models and an adapter."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([python, str(Path(__file__).with_name("tiny.py")), str(folder)], check=True, timeout=60)
    return folder


@pytest.fixture
def world(live_app: LiveApp, settings: Settings) -> SlotWorld:
    settings.GPUPLANE_REDIS_URL = redis.server_url("web")
    return SlotWorld()


@pytest.fixture
def machine(live_app: LiveApp, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(live_app, tmp_path, request.node.name) as found:
        yield found
