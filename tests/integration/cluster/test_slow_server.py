"""An API server that does not answer: who has to ask it waits, and nobody else does."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction

from gpuplane.listeners.agent_tokens import AgentTokens
from gpuplane.listeners.answers import Refused
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.threads import release_connections_while_waiting
from kube.shared import shared_cluster
from kube.waiting import before_waiting
from tests.door import Door
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World

OURS = "system:serviceaccount:gpuplane-system:gpuplane"
AGENTS = "system:serviceaccount:gpuplane-system:gpuplane-agent"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def door(world: World) -> Iterator[Door]:
    with Door() as opened:
        yield opened


def binding(pod: str, username: str) -> dict[str, Any]:
    """A review of a Binding."""
    request = {
        "uid": "one",
        "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "binding",
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "name": pod,
        "userInfo": {"username": username},
        "object": {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "node-a"}},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def until(met: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def seen(world: World, method: str, words: str) -> int:
    """How many such requests have reached the API server."""
    return sum(one.method == method and words in one.path for one in list(world.server.requests))


@pytest.mark.parametrize("waiting", [40, 200], ids=["forty reviews", "more than may wait"])
def test_filter_and_bind_answer_while_look_ups_of_reviews_wait(
    world: World, door: Door, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """CLAIM-7 SCALE-7 Bindings of others, whose pods cannot be read, keep waiting; filter, bind, and our own Binding's
    review do not.
    """
    monkeypatch.setattr("claims.admission.views.LOOKUP_SECONDS", PATIENCE_SECONDS)
    world.node("node-a")
    world.claim("two")
    for name in ("free", "plain"):
        world.pod(name) if name == "free" else world.server.add_pod(name, namespace=NAMESPACE)
    held = threading.Event()
    world.server.faults.append(Fault("GET", rf"/namespaces/{NAMESPACE}/pods/plain$", stall=held, times=1000))
    reviews: list[Future[Any]] = [
        door.sent("/webhooks/bindings/validate", binding("plain", "mallory")) for _ in range(waiting)
    ]
    try:
        until(lambda: seen(world, "GET", "/pods/plain") == 16)
        pod = world.server.pods[NAMESPACE, "free"]
        assert door.filtered(pod, ["node-a"]) == "node-a"
        assert door.bound(pod, "node-a") == ""
        own = door.post("/webhooks/bindings/validate", binding("free", OURS))
        assert own["response"]["allowed"] is True
        over = [one for one in reviews if one.done()]
        assert len(over) == max(0, waiting - 80)
        assert all("try again" in one.result()["response"]["status"]["message"] for one in over)
    finally:
        held.set()
        world.server.faults.clear()
        answers = [one.result(PATIENCE_SECONDS)["response"]["allowed"] for one in reviews]
    assert answers.count(True) >= 16 or answers.count(False) >= 16


def token(number: int) -> str:
    """What looks like an agent's."""
    claims = {"iss": "https://kubernetes.default.svc", "sub": AGENTS, "aud": ["gpuplane"], "exp": time.time() + 3600}
    parts = ({"alg": "RS256"}, {**claims, "jti": str(number)}, number)
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts)


def test_filter_answers_while_token_reviews_wait(world: World, door: Door) -> None:
    """VIEW-6 a flood of tokens that look like agents' waits for the API server alone; tokens in the database are looked
    up beside it.
    """
    world.node("node-a")
    world.claim("two")
    world.pod("free")
    held = threading.Event()
    world.server.faults.append(Fault("POST", "tokenreviews", stall=held, times=1000))
    agents = AgentTokens(lambda: shared_cluster(settings.GPUPLANE_KUBECONFIG), "gpuplane", account=AGENTS)
    bearer = Bearer(lambda _: None, {"known": None}.get, door.lanes, agents=agents)

    async def status(text: str, address: str) -> int:
        scope = {"headers": [(b"authorization", f"Bearer {text}".encode())], "client": (address, 1)}
        try:
            await bearer.agent(scope, node="n1")
        except Refused as refused:
            return refused.status
        return 0

    flood = [door.start(status(token(number), f"10.0.{number}.1")) for number in range(60)]
    try:
        until(lambda: seen(world, "POST", "tokenreviews") == 4)
        assert door.filtered(world.server.pods[NAMESPACE, "free"], ["node-a"]) == "node-a"
        assert door.start(status("no-jwt", "10.9.9.9")).result(PATIENCE_SECONDS) == 401
        assert seen(world, "POST", "tokenreviews") == 4
        assert not any(one.done() for one in flood)
    finally:
        held.set()
        assert {one.result(PATIENCE_SECONDS) for one in flood} == {503}


def test_a_thread_that_waits_for_the_api_server_holds_no_connection(world: World) -> None:
    """SCALE-7 64 binds that wait take no connection of the pool from filter; inside of a transaction, and on SQLite, it
    is kept.
    """
    world.pod("one")
    pooled = connection.vendor == "postgresql"
    release_connections_while_waiting()
    try:
        connection.ensure_connection()
        assert world.backends.cluster is not None
        world.backends.cluster.request("GET", "/version", retry=False)
        assert (connection.connection is None) is pooled
        with transaction.atomic():
            world.backends.cluster.request("GET", "/version", retry=False)
            assert connection.connection is not None
        world.node("node-a")
        world.claim("two")
        world.place("binds")
        assert world.states("binds") == ["bound"]
    finally:
        before_waiting(None)
