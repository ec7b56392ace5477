import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from access.actors import Actor
from access.choices import Role
from gpuplane.doors import DOOR
from gpuplane.doors.bearer import Bearer
from gpuplane.doors.cluster import Cluster, Route
from gpuplane.doors.lookups import LOOKUPS_BURST, Pace
from gpuplane.doors.plan import Door, Tls

LIMIT = 1000
ACTORS = {
    "service": Actor("cluster", Role.OPERATOR, None, service=True),
    "admin": Actor("admin", Role.ADMIN, None),
    "viewer": Actor("viewer", Role.VIEWER),
}
MAIN = Door("main", "127.0.0.1", 1)
LOOPBACK = Door("extender", "127.0.0.1", 2, None, ("/extender/",), bearer=False)
TLS = Tls(Path("/c"), Path("/k"))
WEBHOOKS = Door("webhook", "0.0.0.0", 3, TLS, ("/webhooks/",), bearer=False)
WEBHOOKS_MTLS = Door("webhook", "0.0.0.0", 3, Tls(Path("/c"), Path("/k"), Path("/ca")), ("/webhooks/",), bearer=False)


def echo(body):
    return json.dumps({"bytes": len(body)}).encode()


def echo_for_strangers(body):
    return json.dumps({"stranger": True}).encode()


def broken(body):
    raise RuntimeError("a defect")


def teapot(body):
    return 418, b"{}"


class Table(Route):
    """A route whose handler is given, not imported."""

    @property
    def handler_for_strangers(self):
        return {"echo_for_strangers": echo_for_strangers}[self.strangers]

    @property
    def handler(self):
        return {"echo": echo, "broken": broken, "teapot": teapot}[self.name]


ROUTES = {
    path: Table(path, "", name, inline, strangers=strangers)
    for path, name, inline, strangers in [
        ("/extender/echo", "echo", False, ""),
        ("/webhooks/echo", "echo", True, ""),
        ("/webhooks/looks", "echo", True, "echo_for_strangers"),
        ("/extender/broken", "broken", False, ""),
        ("/extender/teapot", "teapot", True, ""),
    ]
}


@pytest.fixture
def asked():
    """Tokens looked up in the database, in order."""
    return []


@pytest.fixture
def client(asked):
    with ThreadPoolExecutor(2) as executor:

        def verify(token):
            asked.append(token)
            return ACTORS.get(token)

        bearer = Bearer(known=lambda token: None, verify=verify, executor=executor)
        cluster = Cluster(
            routes=ROUTES,
            bearer=bearer,
            executor=executor,
            binders=executor,
            body_limit=LIMIT,
            pace=Pace(clock=lambda: 0.0),  # everything is asked at one moment
        )

        def through(door, peer="10.0.0.1"):
            async def app(scope, receive, send):
                scope[DOOR] = door
                await cluster(scope, receive, send)

            transport = httpx.ASGITransport(app, client=(peer, 40000))
            headers = {"Content-Type": "application/json"}  # as kube-scheduler and the API server say
            return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:2", headers=headers)

        yield through


def auth(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("path", "headers", "want"),
    [
        pytest.param("/extender/echo", auth("service"), 200, id="service account"),
        pytest.param("/webhooks/echo", auth("service"), 200, id="inline handler"),
        pytest.param("/extender/echo", auth("admin"), 200, id="admin"),
        pytest.param("/extender/echo", {"Authorization": "bearer service"}, 200, id="scheme in any case"),
        pytest.param("/extender/echo", {}, 401, id="no token"),
        pytest.param("/extender/echo", auth("unknown"), 401, id="unknown token"),
        pytest.param("/extender/echo", {"Authorization": "Basic service"}, 401, id="another scheme"),
        pytest.param("/extender/echo", {"Authorization": "Bearer "}, 401, id="empty token"),
        pytest.param("/extender/echo", auth("viewer"), 403, id="a viewer"),
        pytest.param("/extender/nothing", auth("service"), 404, id="unknown path"),
        pytest.param("/extender/teapot", auth("service"), 418, id="a handler's own status"),
        pytest.param("/extender/broken", auth("service"), 500, id="a defect"),
    ],
)
async def test_main_door(client, path, headers, want):
    async with client(MAIN) as http:
        answer = await http.post(path, content=b"{}", headers=headers)

    assert answer.status_code == want
    if want >= 400 and want != 418:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == want
    assert ("www-authenticate" in answer.headers) == (want == 401)


async def test_loopback_door_asks_for_no_token(client, asked):
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


async def test_client_that_hangs_up_is_not_answered(client):
    sent = []
    messages = iter(
        [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}],
    )

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    with ThreadPoolExecutor(1) as executor:
        bearer = Bearer(known=ACTORS.get, verify=ACTORS.get, executor=executor)
        cluster = Cluster(routes=ROUTES, bearer=bearer, executor=executor, binders=executor, body_limit=LIMIT)
        headers = [(b"host", b"127.0.0.1:2"), (b"content-type", b"application/json")]
        scope = {"type": "http", "path": "/extender/echo", "method": "POST", "headers": headers, DOOR: LOOPBACK}
        await cluster(scope, receive, send)

    assert sent == []


async def test_body_is_not_read_for_strangers(client):
    read = []

    async def never():
        read.append(True)
        yield b""

    async with client(MAIN) as http:
        answer = await http.post("/extender/echo", content=never())

    assert (answer.status_code, read) == (401, [])


@pytest.mark.parametrize(
    ("door", "headers", "want"),
    [
        pytest.param(WEBHOOKS, {}, {"stranger": True}, id="anybody, without a certificate"),
        pytest.param(WEBHOOKS_MTLS, {}, {"bytes": 2}, id="a client certificate"),
        pytest.param(MAIN, auth("service"), {"bytes": 2}, id="a bearer token"),
    ],
)
async def test_strangers_have_a_handler_of_their_own(client, door, headers, want):
    """Where nobody showed who they are, what looks something up is answered by the handler for strangers."""
    async with client(door) as http:
        answer = await http.post("/webhooks/looks", content=b"{}", headers=headers)

    assert (answer.status_code, answer.json()) == (200, want)


async def test_a_flood_of_one_address_leaves_others_their_lookups(client):
    """An address that asks without end is told 429, which is no verdict; another one, and other paths, are answered."""
    async with client(WEBHOOKS, peer="10.0.0.66") as flood:
        statuses = [
            (await flood.post("/webhooks/looks", content=b"{}")).status_code for _ in range(int(LOOKUPS_BURST) + 10)
        ]
        assert statuses == [200] * int(LOOKUPS_BURST) + [429] * 10
        assert (await flood.post("/webhooks/echo", content=b"{}")).status_code == 200
    async with client(WEBHOOKS, peer="10.0.0.2") as honest:
        assert (await honest.post("/webhooks/looks", content=b"{}")).status_code == 200


async def test_who_showed_a_certificate_has_no_pace(client):
    """The API server of a large cluster may ask as often as it has to."""
    async with client(WEBHOOKS_MTLS) as http:
        statuses = {
            (await http.post("/webhooks/looks", content=b"{}")).status_code for _ in range(int(LOOKUPS_BURST) + 10)
        }

    assert statuses == {200}
