import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from access.actors import Actor
from access.choices import Role, TokenScope
from gpuplane.doors import DOOR
from gpuplane.doors.bearer import Bearer
from gpuplane.doors.cluster import Cluster, Route
from gpuplane.doors.plan import Door

LIMIT = 1000
ACTORS = {
    **{scope.value: Actor("machine", Role.VIEWER, service=True, scope=scope) for scope in TokenScope},
    "admin": Actor("admin", Role.ADMIN, None),
    "viewer": Actor("viewer", Role.VIEWER),
}
MAIN = Door("main", "127.0.0.1", 1)
LOOPBACK = Door("extender", "127.0.0.1", 2, None, ("/extender/",), bearer=False)


def echo(body):
    return json.dumps({"bytes": len(body)}).encode()


def broken(body):
    raise RuntimeError("a defect")


def teapot(body):
    return 418, b"{}"


class Table(Route):
    """A route whose handler is given, not imported."""

    @property
    def handler(self):
        return {"echo": echo, "broken": broken, "teapot": teapot}[self.name]


ROUTES = {
    path: Table(path, "", name, inline)
    for path, name, inline in [
        ("/extender/echo", "echo", False),
        ("/webhooks/echo", "echo", True),
        ("/extender/broken", "broken", False),
        ("/extender/teapot", "teapot", True),
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
        cluster = Cluster(routes=ROUTES, bearer=bearer, executor=executor, binders=executor, body_limit=LIMIT)

        def through(door):
            async def app(scope, receive, send):
                scope[DOOR] = door
                await cluster(scope, receive, send)

            return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gpuplane")

        yield through


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
        scope = {"type": "http", "path": "/extender/echo", "method": "POST", "headers": [], DOOR: LOOPBACK}
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
