"""A web process with short bounds, and models with slots at runtimes of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference.models import Model, Runner, Slot
from nodes.models import Node
from tests.fakes.runtime import runtimes
from tests.gateway import ready_slots
from tests.gateway_client import (
    SETTINGS,
    Asking,
    Served,
)
from tests.servers import redis, web
from tests.slots import SlotWorld


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[web.LiveApp]:
    """A web process with short bounds."""
    with (
        django_db_blocker.unblock(),
        web.running(
            vendor="sqlite",
            folder=tmp_path_factory.mktemp("gateway"),
            redis_url=redis.server_url("gateway"),
            settings=SETTINGS,
            is_forked=True,
        ) as app,
    ):
        yield app


@pytest.fixture
def world(app: web.LiveApp, settings: Any) -> Iterator[SlotWorld]:
    """No model and no slot at first, and none left."""
    settings.GPUPLANE_REDIS_URL = redis.server_url("gateway")
    yield SlotWorld()
    Slot.objects.all().delete()
    Model.objects.all().delete()


@pytest.fixture
def ask(app: web.LiveApp) -> Iterator[Asking]:
    with app.client() as client:
        yield Asking(client)


@pytest.fixture
def serve(world: SlotWorld) -> Iterator[Callable[..., Served]]:
    with runtimes(2) as both:

        def make(count: int = 1, **model: Any) -> Served:
            world.model(**{"runtime": "simulated", "parallel": 1, **model})
            if not Node.objects.filter(name="n1").exists():
                world.runner(gpus=2, memory=80)
            Runner.objects.update(state="connected")
            return Served(world, both[:count], ready_slots(world, *(one.address for one in both[:count])))

        yield make
