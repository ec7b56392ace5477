"""Requests that wait: how long, in which order, and in several web processes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest

from access.choices import Role
from inference.choices import RequestState, State
from inference.dispatch import gateways
from inference.models import Gateway, Request, Slot
from inference.transitions import slot_moved
from storage.clock import database_now
from storage.transactions import atomic_retry
from tests.gateway import miscounted
from tests.gateway_client import (
    QUEUE_LENGTH,
    QUEUE_SECONDS,
    Asking,
    Served,
    error,
    row,
    second_process,
    until,
)
from tests.servers import web
from tests.slots import SlotWorld


def test_a_queue_that_is_full(world: SlotWorld, serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-9 429 with the reason and when to come again. Those that wait came to other web processes."""
    at = serve()
    with ask.stream(tokens=40, gap=0.2) as _:
        others = [one.pk for one in world.requests(count=QUEUE_LENGTH)]
        full = ask()
    Request.objects.filter(pk__in=others).delete()
    status, code, message = error(full)
    assert (status, code, full.headers["retry-after"]) == (429, "queue_full", "5")
    assert message == f"{QUEUE_LENGTH} requests of model chat already wait; retry later"
    assert len(at.runtimes[0].asked) == 1


def test_requests_that_wait_too_long(serve: Callable[..., Served], app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 503 with the reason and when to come again, as many as the queue has room for."""
    at = serve()
    with ask.stream(tokens=40, gap=0.2) as _, httpx.Client(base_url=app.url, headers=ask.client.headers) as other:
        with ThreadPoolExecutor(QUEUE_LENGTH) as threads:
            asking = [threads.submit(Asking(other)) for _ in range(QUEUE_LENGTH)]
        answers = [one.result() for one in asking]
    for late in answers:
        status, code, message = error(late)
        assert (status, code, late.headers["retry-after"]) == (503, "no_slot", "10")
        assert message.startswith(f"no slot became free within {QUEUE_SECONDS} s: ")
        assert (row(late).state, row(late).reason) == ("refused", message)
    assert len(at.runtimes[0].asked) == 1
    until(lambda: at.busy() == 0)


def test_a_model_without_a_slot(world: SlotWorld, ask: Asking) -> None:
    """SLOT-7b the answer has the reason that the plan gave."""
    world.model()

    def tell() -> None:
        waiting = Request.objects.filter(state=RequestState.WAITING)
        until(waiting.exists)
        waiting.update(reason="there are no runners")

    threading.Thread(target=tell).start()
    assert error(ask())[2] == f"no slot became free within {QUEUE_SECONDS} s: there are no runners"


def test_a_slot_that_becomes_ready_serves_who_waits(serve: Callable[..., Served], ask: Asking) -> None:
    """SLOT-2 woken by the move of the slot, without another request."""
    at = serve()
    Slot.objects.update(state=State.STARTING)

    @atomic_retry
    def ready() -> None:
        slot_moved(Slot.objects.get(), State.READY, now=database_now(), address=at.runtimes[0].address)

    threading.Timer(0.5, ready).start()
    response = ask()
    assert response.status_code == 200
    assert row(response).started_at is not None


def test_tokens_take_turns(serve: Callable[..., Served], app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 a user with many requests that wait does not keep another one out."""
    at = serve(parallel=1)
    with ask.stream(endless=True, gap=0.05) as first, app.client() as other:
        order: list[str] = []

        def send(asking: Asking, name: str) -> None:
            asking(behave={}, user=name)
            order.append(name)

        threads = [threading.Thread(target=send, args=(ask, f"many{number}")) for number in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: Request.objects.filter(state=RequestState.WAITING).count() == 2)
        threads.append(threading.Thread(target=send, args=(Asking(other), "one")))
        threads[-1].start()
        until(lambda: Request.objects.filter(state=RequestState.WAITING).count() == 3)
        at.runtimes[0].enough.set()
        list(first.iter_raw())
        for thread in threads:
            thread.join()
    assert [body["user"] for _, _, body in at.runtimes[0].asked[1:]][1] == "one"
    assert at.runtimes[0].most == 1


def test_two_web_processes(serve: Callable[..., Served], app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 a slot never has more than `parallel` requests of both, and all are served."""
    at = serve(parallel=3)
    more = {"GPUPLANE_QUEUE_LENGTH": "1000", "GPUPLANE_QUEUE_SECONDS": "30"}
    with second_process(app, ask, **more) as (_, there), ThreadPoolExecutor(15) as threads:
        behave = {"tokens": 2, "gap": 0.05}
        asked = [threads.submit(asking, behave=behave) for asking in [there] * 12 + [ask] * 3]
        assert [one.result().status_code for one in asked] == [200] * 15
    assert at.runtimes[0].most == 3
    until(lambda: miscounted() == [])


def test_a_web_process_that_is_killed(serve: Callable[..., Served], app: web.LiveApp, ask: Asking) -> None:
    """SLOT-9 within a stream: the runtime stops at once, and the place comes back once the process is silent."""
    at = serve()
    with second_process(app, ask) as (second, there), there.stream(tokens=1000, gap=0.05) as response:
        pieces = response.iter_raw()
        next(pieces)
        second.kill()
        with pytest.raises(httpx.TransportError):
            list(pieces)
    assert at.runtimes[0].wait(lambda one: one.left == 1)
    assert Slot.objects.get().active == 1
    killed = Request.objects.get(state=RequestState.RUNNING)
    now = database_now()
    Gateway.objects.filter(pk=killed.gateway_id).update(seen_at=now - timedelta(seconds=gateways.SILENT_SECONDS + 1))
    assert gateways.end_silent(now=now) == 1
    gateways.fail_orphans(now=now, queue_length=QUEUE_LENGTH)
    killed.refresh_from_db()
    assert (killed.state, killed.reason) == ("failed", gateways.LOST)
    assert ask().status_code == 200
    until(lambda: miscounted() == [])


@pytest.mark.parametrize(
    ("role", "priority", "want"),
    [
        pytest.param(Role.VIEWER, "-5", 200, id="a viewer, lower"),
        pytest.param(Role.VIEWER, "5", 403, id="a viewer, higher"),
        pytest.param(Role.OPERATOR, "5", 200, id="an operator"),
        pytest.param(Role.ADMIN, "1000", 400, id="too high"),
        pytest.param(Role.ADMIN, "high", 400, id="no number"),
    ],
)
def test_priorities(app: web.LiveApp, serve: Callable[..., Served], role: Role, priority: str, want: int) -> None:
    """SLOT-9 above 0 for operators and admins alone."""
    serve()
    with app.client(role=role) as client:
        response = Asking(client)(headers={"X-Request-Priority": priority})
        assert response.status_code == want
        assert want != 200 or row(response).priority == int(priority)
