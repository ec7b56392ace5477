"""The client: right tokens, bounded retries, pages followed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from simulator import api as module
from simulator.api import (
    ATTEMPTS,
    Api,
    Credentials,
    Refused,
    ServerAway,
    pause_seconds,
    read_credentials,
    wait_for_server,
)

CREDENTIALS = Credentials(
    url="http://gpuplane.test",
    api_token="rest-token",
    cluster_token="cluster-token",
    webhooks_token="webhooks-token",
    inventory_token="inventory-token",
)
POD = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": {}}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pause_seconds", lambda attempt: 0.0)


def _api(answer: Callable[[httpx.Request], httpx.Response]) -> Api:
    return Api(CREDENTIALS, transport=httpx.MockTransport(answer))


async def test_each_listener_gets_its_token() -> None:
    seen: dict[str, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[request.url.path] = request.headers["authorization"]
        body: dict[str, object] = {
            "response": {"allowed": True},
            "results": [],
            "next": None,
            "NodeNames": [],
            "token": "fresh",
        }
        return httpx.Response(200, json=[] if request.url.path.endswith("prioritize") else body)

    async with _api(answer) as api:
        await api.put_inventory("n1", {})
        assert await api.agent_token("n1") == "fresh"
        await api.create_claim({})
        await api.live_allocations()
        await api.review("/webhooks/pods/mutate", POD)
        await api.extender_filter(POD, ["n1"])
        await api.extender_prioritize(POD, ["n1"])
        await api.extender_bind(POD, "n1")
    assert {path: token.removeprefix("Bearer ") for path, token in seen.items()} == {
        "/api/v1/nodes/n1/inventory/": "inventory-token",
        "/api/v1/tokens/": "rest-token",
        "/api/v1/claims/": "rest-token",
        "/api/v1/allocations/": "rest-token",
        "/webhooks/pods/mutate": "webhooks-token",
        "/extender/filter": "cluster-token",
        "/extender/prioritize": "cluster-token",
        "/extender/bind": "cluster-token",
    }


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_passing_trouble_is_tried_again_a_bounded_number_of_times(status: int) -> None:
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        return httpx.Response(status)

    async with _api(answer) as api:
        with pytest.raises(ServerAway):
            await api.put_inventory("n1", {})
    assert len(calls) == ATTEMPTS


async def test_lost_connection_is_tried_again() -> None:
    answers = iter([httpx.ConnectError("refused"), httpx.ReadError("reset"), None])

    def answer(request: httpx.Request) -> httpx.Response:
        error = next(answers)
        if error is not None:
            raise error
        return httpx.Response(200, json={"Error": "no device with 50 core free"})

    async with _api(answer) as api:
        assert await api.extender_bind(POD, "n1") == "no device with 50 core free"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
async def test_no_is_not_asked_again(status: int) -> None:
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        return httpx.Response(status, json={"detail": "no"})

    async with _api(answer) as api:
        with pytest.raises(Refused) as refused:
            await api.put_inventory("n1", {})
    assert (refused.value.status, len(calls)) == (status, 1)


async def test_a_conflict_is_no_failure() -> None:
    async with _api(lambda _: httpx.Response(409)) as api:
        assert not await api.create_claim({})


async def test_every_page_is_read() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("cursor", "1"))
        following = f"http://gpuplane.test/api/v1/allocations/?cursor={page + 1}" if page < 3 else None
        return httpx.Response(200, json={"results": [{"page": page}], "next": following, "previous": None})

    async with _api(answer) as api:
        assert [row["page"] for row in await api.live_allocations()] == [1, 2, 3]


@pytest.mark.parametrize("content", [None, "", "{", '{"url": "http://x"}', "[]"])
def test_credentials_that_are_not_whole(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    if content is not None:
        path.write_text(content)
    assert read_credentials(path) is None


async def test_waits_for_credentials_and_for_the_server(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    answers = [httpx.Response(503), httpx.Response(200)]
    path.write_text(
        json.dumps(
            {
                "url": "http://gpuplane.test",
                "api_token": "a",
                "cluster_token": "c",
                "webhooks_token": "w",
                "inventory_token": "i",
                "username": "x",
            }
        )
    )
    found = await wait_for_server(path, transport=httpx.MockTransport(lambda _: answers.pop(0)))
    assert found == Credentials(
        url="http://gpuplane.test", api_token="a", cluster_token="c", webhooks_token="w", inventory_token="i"
    )
    assert answers == []


@pytest.mark.parametrize(
    ("attempt", "jitter", "want"),
    [
        pytest.param(1, 1.0, 0.25, id="the first"),
        pytest.param(3, 1.0, 1.0, id="doubled twice"),
        pytest.param(1000, 1.0, 10.0, id="bounded"),
        pytest.param(1, 0.0, 0.125, id="at most halved by jitter"),
    ],
)
def test_pauses(attempt: int, jitter: float, want: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low + jitter * (high - low))
    assert pause_seconds(attempt) == want
