"""One product and one set of honest clients for the whole suite; what they met while it was quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.attacks import product
from tests.attacks.clients import Honest, Served
from tests.servers import redis

WARM_SECONDS = 4.0
QUIET_SECONDS = 10.0


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[product.Product]:
    """The product, running."""
    try:
        redis.server_url("attacks")
    except redis.NoRedis as missing:
        pytest.skip(str(missing))
    with django_db_blocker.unblock(), product.running(tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.fixture(scope="session")
def clients(attacked: product.Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    """Honest clients, warm."""
    started = Honest(attacked, tmp_path_factory.mktemp("honest") / "record.jsonl")
    try:
        started.wait_until_served()
        time.sleep(WARM_SECONDS)
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def quiet(clients: Honest) -> dict[str, Served]:
    """How they are served while nobody attacks."""
    began = time.monotonic()
    time.sleep(QUIET_SECONDS)
    found = clients.served(began, time.monotonic())
    for kind, served in found.items():
        assert served.seconds, f"{kind}: nothing was asked"
        assert not served.problems, (kind, served.problems[:3])
    return found
