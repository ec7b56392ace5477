"""What a request was answered from is freed with its answer, without the collector of garbage."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from access import tokens
from access.choices import Role
from gpuplane.listeners.django_requests import DjangoRequests
from tests.factories import NodeFactory, UserFactory
from tests.functional.cluster_client import node_shape

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]


def left_behind(method: str, path: str, headers: dict[str, str], body: bytes = b"", *, want: int = 200) -> Counter[str]:
    """Types of the objects that only the collector would free."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "server": ("localhost", 80),
    }
    with ThreadPoolExecutor(1) as pool:
        requests = DjangoRequests(pool)
        requests._answer(scope, body)
        seen = [_left_by(lambda: requests._answer(scope, body)[0], want) for _ in range(TIMES)]
    return reduce(and_, seen)


def _left_by(ask: Callable[[], int], want: int) -> Counter[str]:
    """Types of what one request leaves, and of what threads of others left that ended meanwhile."""
    gc.collect()
    gc.disable()
    try:
        status = ask()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(one).__name__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert status == want
    return found


TIMES = 3
"""A request leaves the same each time; a thread of another test ends once."""
MOST = 30
"""The signed-in account and its profile, which hold each other, and a few small ones. There were 75 to 220 with the
request, its body and what was shown."""


@pytest.mark.parametrize("path", ["/nodes/", "/nodes/n1/", "/claims/"])
def test_a_page_leaves_nothing(path: str) -> None:
    NodeFactory(name="n1", gpus=16)
    client = Client()
    client.force_login(UserFactory())
    cookie = {"Cookie": f"sessionid={client.cookies[settings.SESSION_COOKIE_NAME].value}"}
    _check(left_behind("GET", path, cookie))


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        pytest.param("PUT", "nodes/n1/inventory/", 200, id="an inventory"),
        pytest.param("GET", "nodes/", 200, id="a list"),
        pytest.param("GET", "nodes/no/", 404, id="a problem"),
        pytest.param("POST", "simulations/", 200, id="a scenario"),
    ],
)
def test_rest_leaves_nothing(method: str, path: str, want: int) -> None:
    bearer = {"Authorization": f"Bearer {tokens.issue(UserFactory(role=Role.ADMIN))}"}
    body = {"PUT": json.dumps(node_shape("n1")).encode(), "POST": b"{}", "GET": b""}[method]
    headers = {**bearer, "Content-Type": "application/json", "Content-Length": str(len(body))}
    _check(left_behind(method, f"/api/v1/{path}", headers, body, want=want))


def _check(found: Counter[str]) -> None:
    assert not found.keys() & {"ASGIRequest", "Request", "RequestContext", "Node", "Device", "Response"}
    assert sum(found.values()) <= MOST, found
