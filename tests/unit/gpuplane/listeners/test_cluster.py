import asyncio
import json
import threading
import time
from pathlib import Path

import httpx
import pytest

from access.actors import Actor
from access.choices import Role, TokenScope
from gpuplane.listeners import LISTENER, cluster
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.body_limits import BodyLimits
from gpuplane.listeners.cluster import INLINE_BYTES, ClusterPaths, Route
from gpuplane.listeners.plan import ListenAddress, Tls
from gpuplane.listeners.rate_limits import LOOKUPS
from gpuplane.listeners.threads import Lanes

LIMIT = 1000
ACTORS = {
    **{scope.value: Actor("machine", Role.VIEWER, service=True, scope=scope) for scope in TokenScope},
    "admin": Actor("admin", Role.ADMIN, None),
    "viewer": Actor("viewer", Role.VIEWER),
}
MAIN = ListenAddress("main", "127.0.0.1", 1)
LOOPBACK = ListenAddress("extender", "127.0.0.1", 2, None, ("/extender/",), bearer=False)
TLS = Tls(Path("/c"), Path("/k"))
WEBHOOKS = ListenAddress("webhook", "0.0.0.0", 3, TLS, ("/webhooks/",), bearer=False)
WEBHOOKS_MTLS = ListenAddress(
    "webhook", "0.0.0.0", 3, Tls(Path("/c"), Path("/k"), Path("/ca")), ("/webhooks/",), bearer=False
)


def echo(body):
    return json.dumps({"bytes": len(body)}).encode()


def echo_anonymous(body):
    return json.dumps({"anonymous": True}).encode()


def broken(body):
    raise RuntimeError("a defect")


def teapot(body):
    return 418, b"{}"


def where(body):
    return json.dumps(threading.current_thread().name).encode()


ROUTES = {
    route.path: route
    for route in [
        Route("/extender/echo", echo),
        Route("/webhooks/echo", echo, "webhooks", inline=True),
        Route("/webhooks/looks", echo, "webhooks", inline=True, anonymous=echo_anonymous),
        Route("/extender/broken", broken),
        Route("/extender/teapot", teapot, inline=True),
        Route("/extender/where", where),
        Route("/webhooks/where", where, "webhooks", inline=True),
    ]
}


@pytest.fixture
def asked():
    """Tokens looked up in the database, in order."""
    return []


@pytest.fixture
def limits():
    return BodyLimits(LIMIT)


@pytest.fixture
def threads():
    made = Lanes()
    yield made
    made.close()


@pytest.fixture
def client(asked, threads, limits):
    def verify(token):
        asked.append(token)
        return ACTORS.get(token)

    bearer = Bearer(known=lambda token: None, verify=verify, lanes=threads)
    cluster = ClusterPaths(
        routes=ROUTES,
        bearer=bearer,
        lanes=threads,
        limits=limits,
        clock=lambda: 0.0,  # everything is asked at one moment
    )

    def through(door, peer="10.0.0.1"):
        async def app(scope, receive, send):
            scope[LISTENER] = door
            await cluster(scope, receive, send)

        transport = httpx.ASGITransport(app, client=(peer, 40000))
        headers = {"Content-Type": "application/json"}  # as kube-scheduler and the API server say
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:2", headers=headers)

    return through


def auth(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("path", "headers", "want"),
    [
        pytest.param("/extender/echo", auth("extender"), 200, id="the scheduler's token"),
        pytest.param("/webhooks/echo", auth("webhooks"), 200, id="inline handler"),
        pytest.param("/extender/echo", auth("admin"), 403, id="an admin's token"),
        pytest.param("/extender/echo", auth("webhooks"), 403, id="the API server's token at the scheduler's paths"),
        pytest.param("/webhooks/echo", auth("extender"), 403, id="and the other way round"),
        pytest.param("/extender/echo", auth("metrics"), 403, id="a scraper's"),
        pytest.param("/webhooks/echo", auth("inventory"), 403, id="a registrar's"),
        pytest.param("/webhooks/echo", auth("agent"), 403, id="an agent's"),
        pytest.param("/extender/echo", auth("rest"), 403, id="a machine's that is for REST"),
        pytest.param("/extender/echo", {"Authorization": "bearer extender"}, 200, id="scheme in any case"),
        pytest.param("/extender/echo", {}, 401, id="no token"),
        pytest.param("/extender/echo", auth("unknown"), 401, id="unknown token"),
        pytest.param("/extender/echo", {"Authorization": "Basic extender"}, 401, id="another scheme"),
        pytest.param("/extender/echo", {"Authorization": "Bearer "}, 401, id="empty token"),
        pytest.param("/extender/echo", auth("viewer"), 403, id="a viewer"),
        pytest.param("/extender/nothing", auth("extender"), 404, id="unknown path"),
        pytest.param("/extender/teapot", auth("extender"), 418, id="a handler's own status"),
        pytest.param("/extender/broken", auth("extender"), 500, id="a defect"),
    ],
)
async def test_main_listener(client, path, headers, want):
    async with client(MAIN) as http:
        answer = await http.post(path, content=b"{}", headers=headers)

    assert answer.status_code == want
    if want >= 400 and want != 418:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == want
    assert ("www-authenticate" in answer.headers) == (want == 401)


async def test_loopback_listener_asks_for_no_token(client, asked):
    async with client(LOOPBACK) as http:
        answer = await http.post("/extender/echo", content=b"12345")

    assert answer.json() == {"bytes": 5}
    assert asked == []


async def test_only_post(client):
    async with client(LOOPBACK) as http:
        answer = await http.get("/extender/echo")

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def streamed(size):
    for _ in range(size // 100):
        yield b"x" * 100


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(lambda: b"x" * LIMIT, 200, id="at the limit"),
        pytest.param(lambda: b"x" * (LIMIT + 1), 413, id="declared above the limit"),
        pytest.param(lambda: streamed(LIMIT), 200, id="streamed up to the limit"),
        pytest.param(lambda: streamed(LIMIT + 100), 413, id="streamed above the limit, undeclared"),
    ],
)
async def test_size(client, content, want):
    async with client(LOOPBACK) as http:
        answer = await http.post("/extender/echo", content=content())

    assert answer.status_code == want


async def test_client_that_hangs_up_is_not_answered(threads, limits):
    sent = []
    messages = iter(
        [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}],
    )

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    bearer = Bearer(known=ACTORS.get, verify=ACTORS.get, lanes=threads)
    cluster = ClusterPaths(routes=ROUTES, bearer=bearer, lanes=threads, limits=limits)
    scope = {
        "type": "http",
        "path": "/extender/echo",
        "method": "POST",
        "headers": [(b"host", b"127.0.0.1:2"), (b"content-type", b"application/json")],
        LISTENER: LOOPBACK,
    }
    await cluster(scope, receive, send)

    assert sent == []
    assert limits.of_cluster("/extender/echo").budget.taken_bytes == 0


async def test_body_is_not_read_without_a_credential(client):
    read = []

    async def never():
        read.append(True)
        yield b""

    async with client(MAIN) as http:
        answer = await http.post("/extender/echo", content=never())

    assert (answer.status_code, read) == (401, [])


@pytest.mark.parametrize(
    ("size", "want"),
    [
        pytest.param(10, "MainThread", id="a small body is handled on the event loop"),
        pytest.param(INLINE_BYTES + 1, "webhook_0", id="a large one in a thread of the webhooks' own"),
    ],
)
async def test_nothing_of_size_runs_on_the_event_loop(threads, size, want):
    """A review of many MiB, handled on the event loop, would keep every other request waiting."""
    bearer = Bearer(known=ACTORS.get, verify=ACTORS.get, lanes=threads)
    cluster = ClusterPaths(routes=ROUTES, bearer=bearer, lanes=threads, limits=BodyLimits(1 << 20))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cluster), base_url="http://gpuplane") as http:
        answer = await http.post("/webhooks/where", content=b" " * size, headers=auth("webhooks"))

    assert answer.json() == want


async def test_a_lane_that_is_full_refuses_and_the_others_answer(client, threads, monkeypatch):
    """Reviews that wait take no thread of filter's; one more than the lane takes is told to come again."""
    release, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(body):
        loop.call_soon_threadsafe(begun.set)
        assert release.wait(30)
        return b"{}"

    monkeypatch.setattr(threads.webhooks._slots, "_most", 6)
    waiting = [asyncio.ensure_future(threads.webhooks.run(held, b"")) for _ in range(6)]
    try:
        await begun.wait()
        async with client(LOOPBACK) as http:
            assert (await http.post("/extender/where", content=b"{}")).json() == "filter_0"
            monkeypatch.setattr("gpuplane.listeners.cluster.INLINE_BYTES", 0)
            answer = await http.post("/webhooks/where", content=b"{}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert not any(one.done() for one in waiting)
    finally:
        release.set()
        await asyncio.gather(*waiting)


async def test_bodies_that_are_being_answered_count_against_the_budget(client, limits):
    """Many large bodies at one time cannot add up: whoever comes beyond the budget is told to come again, and nothing
    stays taken.
    """
    budget = limits.of_cluster("/extender/echo").budget
    budget.taken_bytes = budget.most_bytes - 100
    async with client(LOOPBACK) as http:
        declared = await http.post("/extender/echo", content=b"x" * 101)
        in_chunks = await http.post("/extender/echo", content=streamed(200))
        fits = await http.post("/extender/echo", content=b"x" * 100)

    assert [one.status_code for one in (declared, in_chunks, fits)] == [503, 503, 200]
    assert declared.headers["retry-after"] == "1"
    assert declared.json()["status"] == 503
    assert budget.taken_bytes == budget.most_bytes - 100


@pytest.mark.parametrize(
    ("door", "headers", "want"),
    [
        pytest.param(WEBHOOKS, {}, {"anonymous": True}, id="anybody, without a certificate"),
        pytest.param(WEBHOOKS_MTLS, {}, {"bytes": 2}, id="a client certificate"),
        pytest.param(MAIN, auth("webhooks"), {"bytes": 2}, id="a bearer token"),
    ],
)
async def test_anonymous_callers_have_a_handler_of_their_own(client, door, headers, want):
    """Where no credential is asked for, what looks something up is answered by the handler for anonymous callers."""
    async with client(door) as http:
        answer = await http.post("/webhooks/looks", content=b"{}", headers=headers)

    assert (answer.status_code, answer.json()) == (200, want)


async def test_a_flood_of_one_address_leaves_others_their_lookups(client, monkeypatch):
    """An address that asks without end is told 429, no verdict, after a while; others and other paths are answered."""
    monkeypatch.setattr(cluster, "REFUSED_SECONDS", 0.01)
    async with client(WEBHOOKS, peer="10.0.0.66") as flood:
        began = time.monotonic()
        statuses = [
            (await flood.post("/webhooks/looks", content=b"{}")).status_code for _ in range(int(LOOKUPS.burst) + 10)
        ]
        assert time.monotonic() - began >= 10 * cluster.REFUSED_SECONDS
        assert statuses == [200] * int(LOOKUPS.burst) + [429] * 10
        assert (await flood.post("/webhooks/echo", content=b"{}")).status_code == 200
    async with client(WEBHOOKS, peer="10.0.0.2") as honest:
        assert (await honest.post("/webhooks/looks", content=b"{}")).status_code == 200


async def test_a_lookup_refused_by_rate_is_not_repeated(client, monkeypatch):
    """A Retry-After would make the API server repeat the review instead of following its `failurePolicy`."""
    monkeypatch.setattr(cluster, "REFUSED_SECONDS", 0.0)
    async with client(WEBHOOKS, peer="10.0.0.66") as flood:
        for _ in range(int(LOOKUPS.burst)):
            await flood.post("/webhooks/looks", content=b"{}")
        refused = await flood.post("/webhooks/looks", content=b"{}")

    assert refused.status_code == 429
    assert "retry-after" not in refused.headers


async def test_who_showed_a_certificate_has_no_pace(client):
    """The API server of a large cluster may ask as often as it has to."""
    async with client(WEBHOOKS_MTLS) as http:
        statuses = {
            (await http.post("/webhooks/looks", content=b"{}")).status_code for _ in range(int(LOOKUPS.burst) + 10)
        }

    assert statuses == {200}
