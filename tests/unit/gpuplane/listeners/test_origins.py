"""Which pages may open a browser's stream, and whose word counts on where a request comes from."""

import pytest

from gpuplane.listeners.origins import SameOrigin, same_origin
from gpuplane.listeners.proxies import behind_proxies


def scope(origin, *, host="localhost:8000", scheme="ws", **more):
    headers = [] if host is None else [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return {"type": "websocket", "scheme": scheme, "headers": headers, **more}


async def nobody(scope, receive, send):
    raise AssertionError("the application was asked")


async def nothing():
    raise AssertionError("nothing is to be read")


async def nowhere(message):
    raise AssertionError("nothing is to be said")


@pytest.mark.parametrize(
    ("origin", "at", "want"),
    [
        pytest.param("http://localhost:8000", {}, True, id="the same"),
        pytest.param("http://LOCALHOST:8000", {}, True, id="in other letters"),
        pytest.param("http://localhost:9000", {}, False, id="another port"),
        pytest.param("http://localhost", {}, False, id="the default port"),
        pytest.param("https://localhost:8000", {}, False, id="another scheme"),
        pytest.param("http://127.0.0.1:8000", {}, False, id="another name of the host"),
        pytest.param("https://localhost", {"host": "localhost", "scheme": "wss"}, True, id="TLS"),
        pytest.param("https://localhost:443", {"host": "localhost", "scheme": "wss"}, True, id="TLS, port written"),
        pytest.param("http://localhost", {"host": "localhost", "scheme": "wss"}, False, id="plain page, TLS stream"),
        pytest.param("http://[::1]:8000", {"host": "[::1]:8000"}, True, id="IPv6"),
        pytest.param("http://[::1]:8001", {"host": "[::1]:8000"}, False, id="IPv6, another port"),
        pytest.param("http://evil.example", {"host": "evil.example"}, False, id="a host that is not ours"),
        pytest.param(None, {}, False, id="no origin"),
        pytest.param("null", {}, False, id="a sandboxed page"),
        pytest.param("", {}, False, id="an empty one"),
        pytest.param("file://", {}, False, id="a file"),
        pytest.param("http://localhost:8000/", {}, False, id="not as browsers write it"),
        pytest.param("http://localhost:8000@evil.example", {}, False, id="a user name"),
        pytest.param("http://localhost:x", {}, False, id="no port"),
        pytest.param("http://localhost:8000", {"host": None}, False, id="no host"),
    ],
)
def test_only_pages_of_this_origin(origin, at, want):
    """VIEW-6 scheme, host and port of the page must be those of the stream: cookies know no ports."""
    assert same_origin(scope(origin, **at)) is want


def test_two_origins_are_none():
    asked = scope("http://localhost:8000")
    asked["headers"].append((b"origin", b"http://localhost:8000"))
    assert not same_origin(asked)


async def test_others_are_refused_before_the_socket_opens():
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    asked = scope("http://localhost:9000", extensions={"websocket.http.response": {}})
    await SameOrigin(nobody)(asked, receive, send)
    assert sent[0]["status"] == 403


@pytest.mark.parametrize(
    ("trusted", "peer", "headers", "want"),
    [
        pytest.param([], "10.0.0.1", {"for": "1.2.3.4", "proto": "https"}, ("10.0.0.1", "http"), id="nobody is named"),
        pytest.param([], "127.0.0.1", {"for": "1.2.3.4", "proto": "https"}, ("127.0.0.1", "http"), id="nor loopback"),
        pytest.param(["10.0.0.1"], "10.0.0.1", {"for": "1.2.3.4", "proto": "https"}, ("1.2.3.4", "https"), id="named"),
        pytest.param(["10.0.0.0/8"], "10.9.9.9", {"for": "1.2.3.4"}, ("1.2.3.4", "http"), id="by its network"),
        pytest.param(
            ["10.0.0.1"], "10.0.0.2", {"for": "1.2.3.4", "proto": "https"}, ("10.0.0.2", "http"), id="another"
        ),
        pytest.param(["10.0.0.1"], "10.0.0.1", {"for": "6.6.6.6, 1.2.3.4"}, ("1.2.3.4", "http"), id="made up before"),
        pytest.param(
            ["10.0.0.0/8"], "10.0.0.1", {"for": "6.6.6.6, 1.2.3.4, 10.0.0.7"}, ("1.2.3.4", "http"), id="two proxies"
        ),
        pytest.param(["10.0.0.1"], "10.0.0.1", {}, ("10.0.0.1", "http"), id="the proxy says nothing"),
        pytest.param(["10.0.0.1"], "10.0.0.1", {"proto": "gopher"}, ("10.0.0.1", "http"), id="no scheme of ours"),
    ],
)
async def test_whose_word_counts(trusted, peer, headers, want):
    """VIEW-6 where a request comes from is said by the proxies that are named, and by nobody else."""
    seen = {}

    async def application(scope, _receive, _send):
        seen.update(scope)

    told = [(f"x-forwarded-{name}".encode(), value.encode()) for name, value in headers.items()]
    asked = {"type": "http", "scheme": "http", "client": (peer, 1), "headers": told}
    await behind_proxies(application, trusted)(asked, nothing, nowhere)
    assert (seen["client"][0], seen["scheme"]) == want
