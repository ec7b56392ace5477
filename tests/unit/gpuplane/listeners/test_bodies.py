"""What stands in front of Django: sizes by path and credential, budgets, turns, and answers that nobody has to wait
for.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path

from access.clients import Client
from allocations.whatif import run
from allocations.whatif.run_slots import RUNS_MOST
from gpuplane.listeners import App, bodies
from gpuplane.listeners.bodies import BudgetHold, NoRoom, guarded, read_body
from gpuplane.listeners.body_limits import (
    KIB,
    LARGE_INVENTORY_BYTES,
    LARGEST_OF_DJANGO_BYTES,
    MIB,
    BodyLimits,
    Budget,
    RequestKind,
)
from gpuplane.listeners.threads import LIVE_CONNECTIONS, QUICK_CONNECTIONS, Slots, django_slots
from gpuplane.settings.variables import VARIABLES
from kube.waiting import before_waiting
from tests.unit.gpuplane.listeners.guard import TOKEN, behind_guard, reader

COOKIE = {"Cookie": "a=b; sessionid=anything"}


async def chunks(size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, 65_536):
        yield b"x" * min(65_536, size - start)


@pytest.mark.parametrize(
    ("address", "headers", "limit"),
    [
        pytest.param("/api/v1/nodes/n1/inventory/", TOKEN, MIB, id="an inventory"),
        pytest.param("/api/v1/simulations/", TOKEN, 4 * MIB, id="a simulation"),
        pytest.param("/api/v1/simulations/", COOKIE, 4 * MIB, id="a simulation by session"),
        pytest.param("/api/v1/claims/", TOKEN, MIB, id="other REST"),
        pytest.param("/claims/new/", COOKIE, MIB, id="a page"),
        pytest.param("/api/v1/gguf-headers/", TOKEN, 16 * MIB, id="a GGUF header"),
        pytest.param("/api/v1/simulations/", {}, 64 * KIB, id="a simulation without a credential"),
        pytest.param("/claims/new/", {"Cookie": "csrftoken=x"}, 64 * KIB, id="a page without a session"),
        pytest.param("/sign-in/", COOKIE, 64 * KIB, id="signing in"),
        pytest.param("/admin/login/", COOKIE, 64 * KIB, id="signing in to the admin"),
        pytest.param("/readyz", TOKEN, 64 * KIB, id="a probe"),
    ],
)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in chunks"])
async def test_limits_by_path_and_credential(address: str, headers: dict[str, str], limit: int, declared: bool) -> None:
    """VIEW-5 each address takes as much as it needs, and from callers without a credential hardly anything."""
    async with behind_guard(reader) as http:
        for size, want in ((limit, 200), (limit + 1, 413)):
            answer = await http.post(address, content=b"x" * size if declared else chunks(size), headers=headers)
            assert answer.status_code == want
    assert answer.json()["status"] == 413
    assert str(limit) in answer.json()["detail"]


@pytest.mark.parametrize(
    ("address", "body_limit", "limit"),
    [
        pytest.param("/extender/filter", 32 * MIB, 32 * MIB, id="filter"),
        pytest.param("/extender/filter", 64 * MIB, 64 * MIB, id="filter, as set"),
        pytest.param("/extender/bind", 32 * MIB, 64 * KIB, id="bind"),
        pytest.param("/webhooks/pods/mutate", 32 * MIB, 3 * MIB, id="a webhook"),
        pytest.param("/webhooks/pods/mutate", MIB, MIB, id="a webhook under a lower limit"),
    ],
)
def test_limits_of_the_cluster(address: str, body_limit: int, limit: int) -> None:
    limits = BodyLimits(body_limit)
    bound = limits.of_cluster(address)
    assert bound.limit_bytes == limit
    assert bound.budget.most_bytes >= limit
    assert limits.agents.limit_bytes == 256 * KIB


async def test_a_budget_is_shared_by_kind_and_given_back() -> None:
    limits = BodyLimits(32 * MIB)
    simulations = limits.of_django(
        {"path": "/api/v1/simulations/", "method": "POST", "headers": [(b"authorization", b"Bearer x")]}
    ).budget
    simulations.taken_bytes = simulations.most_bytes - 10
    async with behind_guard(reader, limits) as http:
        full = await http.post("/api/v1/simulations/", content=b"x" * 11, headers=TOKEN)
        streamed = await http.post("/api/v1/simulations/", content=chunks(11), headers=TOKEN)
        other = await http.post("/api/v1/claims/", content=b"x" * 11, headers=TOKEN)
    assert [one.status_code for one in (full, streamed, other)] == [503, 503, 200]
    assert full.headers["retry-after"] == "1"
    assert simulations.taken_bytes == simulations.most_bytes - 10


class Clock:
    """Seconds that go on when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def unfinished(guard: App, size: int, begun: asyncio.Event) -> list[Any]:
    """What an upload is answered of which the end never comes."""
    said: list[Any] = []
    first = {"type": "http.request", "body": b"x" * size, "more_body": True}

    async def receive() -> Any:
        if not begun.is_set():
            begun.set()
            return first
        await asyncio.Event().wait()
        return None

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/claims/new/", "headers": [(b"cookie", b"sessionid=x")]}
    await guard(scope, receive, send)
    return said


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        pytest.param(0.5, 503, id="uploads that have just begun keep their place"),
        pytest.param(2.0, 200, id="long ones make room"),
    ],
)
async def test_slow_uploads_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, seconds: float, want: int) -> None:
    """Whoever fills a budget with bodies that never end is ended, so that others find room: the one that began first
    goes first.
    """
    clock, limits = Clock(), BodyLimits(32 * MIB)
    budget = limits.of_django({"path": "/", "method": "POST", "headers": [(b"cookie", b"sessionid=x")]}).budget
    monkeypatch.setattr(budget, "_clock", clock)
    monkeypatch.setattr(budget, "most_bytes", 3_000)
    guard = guarded(reader, bound_of=limits.of_django, slots=django_slots(None))
    slow = []
    for _ in range(3):
        begun = asyncio.Event()
        slow.append(asyncio.ensure_future(unfinished(guard, 1_000, begun)))
        await begun.wait()
        await asyncio.sleep(0)
    clock.now += seconds
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://gpuplane") as http:
        answer = await http.post("/claims/new/", content=b"x" * 1_000, headers=COOKIE)
    assert answer.status_code == want
    if want == 200:
        assert (await slow[0])[0]["status"] == 503
    assert [one.done() for one in slow] == [want == 200, False, False]
    for one in slow:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert (budget.taken_bytes, len(budget.unfinished)) == (0, 0)


async def test_what_breaks_inside_gives_its_bytes_back() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a defect")

    limits = BodyLimits(32 * MIB)
    with pytest.raises(RuntimeError, match="a defect"):
        async with behind_guard(broken, limits) as http:
            await http.post("/claims/new/", content=b"x" * 1000, headers=COOKIE)
    assert (
        limits.of_django({"path": "/", "method": "POST", "headers": [(b"cookie", b"sessionid=x")]}).budget.taken_bytes
        == 0
    )


async def test_slow_rest_does_not_stop_pages_nor_the_other_way_round() -> None:
    """Each kind of request waits for its own kind alone; beyond what may wait the answer is 503."""
    release, inside = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/api/"):
            inside.set()
            await release.wait()
        await reader(scope, receive, send)

    turns = {kind: Slots(kind, at_once=1, waiting=1, patience_seconds=60) for kind in RequestKind}
    async with behind_guard(slow, slots=turns) as http:
        first = asyncio.ensure_future(http.get("/api/v1/claims/", headers=TOKEN))
        await inside.wait()
        second = asyncio.ensure_future(http.get("/api/v1/claims/", headers=TOKEN))
        while turns[RequestKind.REST].inside < 2:  # noqa: ASYNC110 - it comes with the loop's next turns
            await asyncio.sleep(0)
        refused = await http.get("/api/v1/nodes/", headers=TOKEN)
        others = [
            await http.get("/nodes/", headers=COOKIE),
            await http.get("/livez"),
            await http.get("/sign-in/"),
        ]
        assert not any(one.done() for one in (first, second))
        release.set()
        answered = [await first, await second]

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert [one.status_code for one in (*others, *answered)] == [200] * 5
    assert {turn.inside for turn in turns.values()} == {0}


def test_the_pool_has_a_connection_for_every_thread() -> None:
    """However busy pages and REST are, filter, bind and agents find a connection of PostgreSQL's pool."""
    default = next(one for one in VARIABLES if one.name == "GPUPLANE_DATABASE_POOL")
    size = default.kind.parse(default.default)
    turns = django_slots(size)
    hold_none = {RequestKind.ALIVE, RequestKind.SIMULATIONS}  # simulations for moments alone
    holding = sum(one.at_once for kind, one in turns.items() if kind not in hold_none)
    assert holding + QUICK_CONNECTIONS + LIVE_CONNECTIONS <= size
    assert all(one.at_once >= 1 for one in django_slots(2).values())


async def test_too_long_a_wait_for_a_slot_is_answered() -> None:
    turns = {kind: Slots(kind, at_once=1, waiting=1, patience_seconds=0.0) for kind in RequestKind}
    async with turns[RequestKind.PAGES], behind_guard(reader, slots=turns) as http:
        assert (await http.get("/nodes/", headers=COOKIE)).status_code == 503
    assert turns[RequestKind.PAGES].inside == 0


async def test_large_inventories_have_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a while of one credential, declared or in chunks; small ones, other paths and other credentials go on."""
    monkeypatch.setattr(bodies, "REFUSED_SECONDS", 0.0)
    inventory, large = "/api/v1/nodes/n1/inventory/", LARGE_INVENTORY_BYTES

    async with behind_guard(reader) as http:

        async def put(size: int, *, path: str = inventory, chunked: bool = False, who: dict[str, str] = TOKEN) -> Any:
            return await http.put(path, headers=who, content=chunks(size) if chunked else b"x" * size)

        first = await put(large)
        refused = [await put(large), await put(large, chunked=True)]
        others = [
            await put(large - 1),
            await put(large, path="/api/v1/claims/"),
            await put(large, who={"Authorization": "Bearer another"}),
        ]

    assert [one.status_code for one in (first, *others)] == [200] * 4
    assert [(one.status_code, one.headers["retry-after"]) for one in refused] == [(429, "30")] * 2


async def test_a_client_that_reads_slowly_holds_no_turn() -> None:
    """Django has answered whole before the first byte goes out: thread and database connection are free by then."""
    turns = {kind: Slots(kind, at_once=1, waiting=0) for kind in RequestKind}
    guard = guarded(reader, bound_of=BodyLimits(MIB).of_django, slots=turns)
    seen = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        seen.append((message["type"], turns[RequestKind.ANONYMOUS].inside))

    await guard({"type": "http", "path": "/", "headers": []}, receive, send)
    assert seen == [("http.response.start", 0), ("http.response.body", 0)]


def upload(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(len(request.POST.get("text", ""))))


urlpatterns = [path("claims/new/", upload)]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("kind", ["form", "multipart"])
async def test_django_writes_no_body_to_a_file(kind: str, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Bodies of pages never reach the temporary folder, however large they may be."""
    settings.MIDDLEWARE = []

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a body is written to a file")

    monkeypatch.setattr(tempfile, "TemporaryFile", never)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", never)
    size = MIB - 1000
    body: dict[str, Any] = {"data": {"text": "x" * size}}
    if kind == "multipart":
        body["files"] = {"file": ("a", b"y" * 100)}
    async with behind_guard(cast("App", ASGIHandler())) as http:
        answer = await http.post("http://localhost/claims/new/", headers=COOKIE, **body)
    assert (answer.status_code, answer.text) == (200, str(size))


def test_django_agrees_with_the_largest_body() -> None:
    assert settings.FILE_UPLOAD_MAX_MEMORY_SIZE == settings.DATA_UPLOAD_MAX_MEMORY_SIZE == LARGEST_OF_DJANGO_BYTES


async def test_the_last_bytes_of_a_long_upload_do_not_end_it_from_within() -> None:
    """Where its own last piece finds no room, it is told so (503), and no defect is reported of it."""
    clock = Clock()
    budget = Budget("test", 1_000, clock=clock)
    pieces = [(900, True), (200, False)]

    async def receive() -> Any:
        size, more = pieces.pop(0)
        clock.now += 2.0
        return {"type": "http.request", "body": b"x" * size, "more_body": more}

    with BudgetHold(budget) as held, pytest.raises(NoRoom):
        await read_body({"headers": []}, receive, limit=2_000, held=held)
    await asyncio.sleep(0)  # nobody has cancelled this task
    assert (budget.taken_bytes, budget.unfinished) == (0, {})


@pytest.mark.parametrize("pool_size", [None, 30])
def test_as_many_what_ifs_have_a_turn_as_may_run(pool_size: int | None) -> None:
    """VIEW-4 (part) a long run makes no other of them wait, and one too many is told so at once."""
    assert django_slots(pool_size)[RequestKind.SIMULATIONS].at_once > RUNS_MOST


@pytest.mark.parametrize(
    ("method", "address", "kind"),
    [
        pytest.param("POST", "/simulate/", RequestKind.SIMULATIONS, id="a run by the page"),
        pytest.param("GET", "/simulate/", RequestKind.PAGES, id="the page alone"),
        pytest.param("POST", "/api/v1/simulations/", RequestKind.SIMULATIONS, id="a run over REST"),
        pytest.param("GET", "/nodes/", RequestKind.PAGES, id="another page"),
    ],
)
def test_what_ifs_take_no_turns_of_pages(method: str, address: str, kind: RequestKind) -> None:
    """VIEW-4 (part) runs by the page, too, take the turns of what-ifs."""
    scope = {"path": address, "method": method, "headers": [(b"cookie", b"sessionid=x")]}
    assert BodyLimits(32 * MIB).of_django(scope).kind == kind


def test_a_what_if_waits_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-4 (part) it lets go of the database before its process begins."""
    order: list[str] = []

    def answered(*_: object, **__: object) -> bytes:
        order.append("waits")
        return b"{}"

    before_waiting(lambda: order.append("let go"))
    try:
        monkeypatch.setattr(run, "answer_to", answered)
        run.what_if(b"{}", user=7, kind="json", form="result", client=Client())
    finally:
        before_waiting(None)
    assert order == ["let go", "waits"]
