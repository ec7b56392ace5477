"""What clients and runtimes may do to `/v1/` of the real web process, over real sockets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from inference.choices import RequestState, State
from inference.models import Request, Slot
from inference.transitions import slot_moved
from storage.clock import database_now
from storage.transactions import atomic_retry
from tests.fakes.runtime import PIECE
from tests.gateway import miscounted
from tests.gateway_client import (
    CHAT,
    Asking,
    Served,
    connected,
    error,
    row,
    until,
)
from tests.servers import web


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"{", (400, "invalid_json"), id="malformed"),
        pytest.param(b"", (400, "invalid_json"), id="empty"),
        pytest.param(b'["chat"]', (400, "invalid_request"), id="no object"),
        pytest.param(b'{"messages": []}', (400, "model_missing"), id="no model"),
        pytest.param(b'{"model": 3}', (400, "invalid_request"), id="a model that is no text"),
        pytest.param(b'{"model": "a\\u0000b"}', (400, "invalid_request"), id="a name with a zero"),
        pytest.param(b'{"model": "' + b"a" * 300 + b'"}', (400, "invalid_request"), id="a long name"),
        pytest.param(b'{"model": "\\ud800"}', (400, "invalid_json"), id="half a surrogate"),
        pytest.param(b'{"a": ' + b"[" * 200_000, (400, "invalid_json"), id="deep"),
        pytest.param(b'{"model": "nobody"}', (404, "model_not_found"), id="unknown model"),
    ],
)
def test_bad_bodies(app: web.LiveApp, ask: Asking, content: bytes, want: tuple[int, str]) -> None:
    """SLOT-9 each is answered by a sentence, in OpenAI's shape, and no row is left."""
    before = Request.objects.count()
    response = ask.client.post(CHAT, content=content)
    assert error(response)[:2] == want
    assert Request.objects.count() == before


def test_a_hundred_megabytes(app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 are refused before they are read."""
    assert error(ask.client.post(CHAT, content=b" " * 100_000_000))[:2] == (413, "body_too_large")


def test_a_client_that_goes_away(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 the runtime's request ends within moments, and the place is free."""
    at = serve()
    with ask.stream(tokens=1000, gap=0.05) as response:
        next(response.iter_raw())
    assert at.runtimes[0].wait(lambda runtime: runtime.left == 1)
    done = row(response)
    assert (done.state, done.reason) == ("cancelled", "the client has gone")
    until(lambda: miscounted() == [])
    assert ask().status_code == 200


def test_a_client_that_goes_away_while_it_waits(serve: Callable[..., Served], app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 its request never reaches a runtime."""
    at = serve()
    with ask.stream(endless=True, gap=0.05) as response:
        waiting = connected(app, ask, b'{"model": "chat"}')
        until(lambda: Request.objects.filter(state=RequestState.WAITING).exists())
        waiting.close()
        until(lambda: Request.objects.filter(state=RequestState.CANCELLED).exists())
        at.runtimes[0].enough.set()
        list(response.iter_raw())
    assert row(response).state == "done"
    assert len(at.runtimes[0].asked) == 1
    until(lambda: miscounted() == [])


def test_a_client_that_reads_slowly(serve: Callable[..., Served], app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 the runtime is read no further than the client reads, and the stream is whole in the end."""
    at = serve()
    count, pad = 1500, 32_768  # more than the buffers of the sockets on the way may grow to
    body = json.dumps({"model": "chat", "behave": {"tokens": count, "pad": pad}}).encode()
    with connected(app, ask, body, receive_bytes=16_384) as slow:
        assert slow.recv(1024).startswith(b"HTTP/1.1 200")
        time.sleep(1.0)
        assert at.runtimes[0].active == 1  # not all of 49 MB is sent
        assert ask.client.get("/livez").status_code == 200
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received = received[-8:] + slow.recv(1 << 20)
    until(lambda: Request.objects.filter(state=RequestState.DONE, tokens=count).exists())
    until(lambda: miscounted() == [])


@pytest.mark.parametrize(
    ("behave", "want", "state"),
    [
        pytest.param({"status": 500}, (500, 1), "failed", id="500 is passed on"),
        pytest.param({"status": 422}, (422, 1), "done", id="what is wrong with the request is passed on"),
        pytest.param({"hang": True}, (504, 1), "failed", id="hangs"),
        pytest.param({"status": 503}, (503, 2), "refused", id="takes nothing: each slot is asked once"),
        pytest.param({"close": 0}, (503, 2), "refused", id="closes at once"),
    ],
)
def test_runtimes_that_misbehave(
    serve: Callable[..., Served], ask: Asking, behave: dict[str, Any], want: tuple[int, int], state: str
) -> None:
    """SLOT-9"""
    at = serve(2)
    response = ask(behave=behave)
    assert (response.status_code, sum(len(one.asked) for one in at.runtimes)) == want
    assert row(response).state == state
    until(lambda: miscounted() == [])


def test_a_slot_that_just_drained(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 the request is tried elsewhere before a byte was sent, and the client sees nothing of it."""
    at = serve(2)
    first = next(one for one in at.runtimes if one.address == Slot.objects.order_by("-last_used_at", "pk")[0].address)
    for one in at.runtimes:
        one.behave = {"status": 503} if one is first else None
    for _ in range(2):
        assert ask().status_code == 200
    until(lambda: miscounted() == [])


def test_a_slot_that_dies_within_a_stream(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 the client gets what there is, an error as its last event, and the place is free."""
    serve()
    with ask.stream(tokens=5, close=2) as response:
        received = b"".join(response.iter_raw())
    assert received.startswith(PIECE % 0 + PIECE % 1)
    last = json.loads(received.split(b"\n\n")[-2].removeprefix(b"data: "))
    assert last["error"]["message"] == "the slot closed the connection within its answer"
    assert row(response).state == "failed"
    until(lambda: miscounted() == [])


def test_a_slot_that_fails_before_it_answers(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 whoever waits for its first byte goes to another slot, though the connection is still there."""
    at = serve(2)
    for one in at.runtimes:
        one.behave = {"hang": True}

    @atomic_retry
    def fail() -> None:
        slot = Slot.objects.get(active=1)
        for one in at.runtimes:
            one.behave = {"hang": True} if one.address == slot.address else None
        slot_moved(slot, State.FAILED, now=database_now(), reason="its runner is silent")

    def fail_soon() -> None:
        until(lambda: any(one.active for one in at.runtimes))
        fail()

    failing = threading.Thread(target=fail_soon)
    failing.start()
    response = ask()
    failing.join()
    assert response.status_code == 200
    assert [len(one.asked) for one in at.runtimes] == [1, 1]
    assert row(response).state == "done"
    until(lambda: miscounted() == [])


def test_what_a_browser_would_run_is_not_passed_on(serve: Callable[..., Served], ask: Asking) -> None:
    """A runtime's page stays a text."""
    serve()
    response = ask(behave={"status": 404, "type": "text/html"})
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
