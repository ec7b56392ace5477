"""What `/v1/` answers, of the real web process in front of runtimes with real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from access.choices import TokenScope
from nodes.models import Node
from tests.fakes.runtime import DONE, PIECE, runtimes
from tests.gateway import miscounted, ready_slots
from tests.gateway_client import CHAT, Asking, Served, error, row, until
from tests.servers import web
from tests.slots import SlotWorld


def test_an_answer_is_passed_on(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 the runtime gets the body with its own name for the model, and neither token nor other headers."""
    at = serve()
    response = ask("chat", lora=None, temperature=0.10, headers={"X-Mine": "1", "Cookie": "a=b"})
    assert (response.status_code, response.json()["usage"]) == (200, {"completion_tokens": 5})
    assert "set-cookie" not in response.headers
    ((path, headers, body),) = at.runtimes[0].asked
    assert (path, body) == (CHAT, {"model": "chat", "messages": [], "temperature": 0.10})
    assert set(headers) <= {"host", "content-type", "content-length", "accept-encoding", "x-request-id", "accept"} | {
        "user-agent"
    }
    assert headers["x-request-id"] == response.headers["x-request-id"]
    done = row(response)
    assert (done.state, done.tokens, done.model_name, done.slot_id) == ("done", 5, "chat", at.slots[0].pk)
    assert done.user is not None
    times = [done.arrived_at, done.started_at, done.first_byte_at, done.ended_at]
    assert None not in times
    assert times == sorted(at for at in times if at is not None)
    until(lambda: miscounted() == [])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", CHAT])
def test_openais_paths(serve: Callable[..., Served], ask: Asking, path: str) -> None:
    """SLOT-9"""
    at = serve()
    assert ask(path=path).status_code == 200
    assert at.runtimes[0].asked[0][0] == path


def test_pieces_come_as_they_are_sent(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 a stream is not kept back: the first piece is there while the runtime waits to send the next."""
    at = serve()
    with ask.stream(tokens=2, gap=1.0) as response:
        pieces = response.iter_raw()
        assert next(pieces) == PIECE % 0
        assert at.runtimes[0].active == 1
        assert b"".join(pieces) == PIECE % 1 + DONE
    assert response.headers["content-type"] == "text/event-stream"
    assert row(response).tokens == 2


def test_figures(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 time to the first token, tokens and their rate, and time in the queue, by model."""
    serve()
    with ask.stream(tokens=3, gap=0.01) as response:
        list(response.iter_raw())
    row(response)
    found = ask.client.get("/metrics", headers={"Authorization": ""}).text
    for name in ("queue_seconds_count", "first_token_seconds_count", "tokens_total", "tokens_per_second_count"):
        assert f'gpuplane_inference_{name}{{model="chat"}}' in found
    assert 'gpuplane_inference_requests_total{model="chat",outcome="done"}' in found
    assert 'gpuplane_inference_running{model="chat"} 0.0' in found


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param({"model": "chat:lora:legal"}, 200, id="in the model"),
        pytest.param({"model": "chat", "lora": "legal"}, 200, id="as a field"),
        pytest.param({"model": "chat:lora:legal", "lora": "legal"}, 200, id="both"),
        pytest.param({"model": "chat:lora:legal", "lora": "other"}, 400, id="both, and not the same"),
        pytest.param({"model": "chat:lora:"}, 400, id="none after the separator"),
    ],
)
def test_loras(world: SlotWorld, ask: Asking, asked: dict[str, Any], want: int) -> None:
    """SLOT-9"""
    with runtimes(1) as (runtime,):
        world.model(runtime="simulated")
        if not Node.objects.filter(name="n1").exists():
            world.runner(gpus=2, memory=80)
        ready_slots(world, runtime.address, lora="legal")
        response = ask(**asked)
        assert response.status_code == want
        assert [body["model"] for _, _, body in runtime.asked] == ["legal"] * (want == 200)
        assert all("lora" not in body for _, _, body in runtime.asked)


def test_the_list_of_models(world: SlotWorld, ask: Asking) -> None:
    """SLOT-9"""
    world.model("chat")
    world.model("code")
    time.sleep(1.1)  # the list is kept for a second
    found = ask.client.get("/v1/models").json()
    assert found["object"] == "list"
    assert [(one["id"], one["object"], one["owned_by"]) for one in found["data"]] == [
        ("chat", "model", "gpuplane"),
        ("code", "model", "gpuplane"),
    ]
    assert ask.client.get("/v1/models/code").json() == found["data"][1]
    assert error(ask.client.get("/v1/models/nobody"))[:2] == (404, "model_not_found")


@pytest.mark.parametrize(
    ("scope", "path", "method", "want"),
    [
        pytest.param(None, CHAT, "POST", 401, id="nobody"),
        pytest.param(TokenScope.EXTENDER, CHAT, "POST", 403, id="kube-scheduler"),
        pytest.param(TokenScope.METRICS, "/v1/models", "GET", 403, id="Prometheus"),
        pytest.param(TokenScope.REST, CHAT, "GET", 405, id="another method"),
        pytest.param(TokenScope.REST, "/v1/files", "POST", 404, id="another path"),
    ],
)
def test_who_may_ask(app: web.LiveApp, scope: TokenScope | None, path: str, method: str, want: int) -> None:
    """SLOT-9 API tokens of scope rest, and those alone."""
    headers = {} if scope is None else {"Authorization": f"Bearer {app.token(scope=scope)}"}
    response = httpx.request(method, app.url + path, headers=headers, verify=False)
    assert error(response)[0] == want
