"""The door on loopback without credentials: programs of this machine are answered, pages in its browser are not."""

from __future__ import annotations

import json

import httpx
import pytest

from gpuplane.listeners import LISTENER
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.body_limits import BodyLimits
from gpuplane.listeners.cluster import ClusterPaths, Route
from gpuplane.listeners.plan import ListenAddress
from gpuplane.listeners.threads import Lanes

LOOPBACK = ListenAddress("extender", "127.0.0.1", 8001, None, ("/extender/",), bearer=False)
OWN = {"Host": "127.0.0.1:8001", "Content-Type": "application/json"}
"""As kube-scheduler asks."""


@pytest.fixture
def bound():
    """Bodies that reached the bind."""
    return []


@pytest.fixture
async def http(bound):
    def bind(body):
        bound.append(body)
        return b"{}"

    threads = Lanes()
    bearer = Bearer(known=lambda _: None, verify=lambda _: None, lanes=threads)
    routes = {"/extender/bind": Route("/extender/bind", bind, inline=True)}
    cluster = ClusterPaths(routes=routes, bearer=bearer, lanes=threads, limits=BodyLimits(1000))

    async def app(scope, receive, send):
        scope[LISTENER] = LOOPBACK
        await cluster(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8001") as client:
        yield client
    threads.close()


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({}, 200, id="kube-scheduler"),
        pytest.param({"Host": "localhost:8001"}, 200, id="by name"),
        pytest.param({"Host": "LOCALHOST"}, 200, id="by name, in capitals, without a port"),
        pytest.param({"Host": "127.9.9.9:8001"}, 200, id="another address of loopback"),
        pytest.param({"Host": "[::1]:8001"}, 200, id="loopback of IPv6"),
        pytest.param({"Host": "127.0.0.1:9001"}, 200, id="a port that was forwarded"),
        pytest.param({"Content-Type": "application/json; charset=utf-8"}, 200, id="JSON with a charset"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="a page of somebody's"),
        pytest.param({"Origin": "http://127.0.0.1:3000"}, 403, id="a page of this machine"),
        pytest.param({"Origin": "null"}, 403, id="a page in a sandbox, or a file"),
        pytest.param({"Host": "evil.example:8001"}, 403, id="a name that resolves to loopback"),
        pytest.param({"Host": "127.0.0.1.evil.example:8001"}, 403, id="a name that begins like an address"),
        pytest.param({"Host": "localhost.evil.example"}, 403, id="a name that begins like localhost"),
        pytest.param({"Host": "127.0.0.1:8001@evil.example"}, 403, id="an address before a name"),
        pytest.param({"Host": "10.0.0.5:8001"}, 403, id="an address of the network"),
        pytest.param({"Host": "::1"}, 403, id="IPv6 without brackets"),
        pytest.param({"Host": ""}, 403, id="no host"),
        pytest.param({"Host": "[::1"}, 403, id="half a bracket"),
        pytest.param({"Content-Type": "text/plain"}, 415, id="what a page may send unasked"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, 415, id="a form"),
        pytest.param({"Content-Type": "text/plain; application/json"}, 415, id="JSON as a parameter"),
        pytest.param({"Content-Type": ""}, 415, id="none"),
    ],
)
async def test_only_programs_of_this_machine_bind(http, bound, headers, want):
    """LEASE-1 no page in a browser of this machine, and no rebound name, binds a pod."""
    body = json.dumps({"PodName": "a", "PodNamespace": "b", "PodUID": "c", "Node": "n"}).encode()

    answer = await http.post("/extender/bind", content=body, headers=OWN | headers)

    assert answer.status_code == want
    assert bound == ([body] if want == 200 else [])
    assert "access-control-allow-origin" not in answer.headers


async def test_a_browser_that_asks_first_is_not_let_in(http):
    """A page that wants to send JSON asks by OPTIONS, and hears of no permission."""
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await http.options("/extender/bind", headers=asked)

    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control-")]
