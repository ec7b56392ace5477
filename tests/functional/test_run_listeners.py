"""The journey of a kube-scheduler and an API server: through TLS doors of the real web process."""

import json
import os
import signal
import socket
import ssl
import time

import httpx
import pytest
import websockets.exceptions
import websockets.sync.client

from tests.certificates import Authority
from tests.servers import forked


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """Ports of the three doors, the CA, certificates of clients by name, credentials.json."""
    folder = tmp_path_factory.mktemp("doors")
    ours, strangers = Authority(folder / "ours"), Authority(folder / "strangers")
    server, scheduler, stranger = (
        ours.issue("server"),
        ours.issue("scheduler"),
        strangers.issue("stranger"),
    )
    ca = ours.certificate
    ports = {name: _free_port() for name in ("main", "extender", "webhook")}
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
        "GPUPLANE_DATA_DIR": str(folder / "data"),
        "GPUPLANE_SIMULATE": "0",
        "GPUPLANE_PORT": str(ports["main"]),
        "GPUPLANE_EXTENDER_LISTEN": f"https://127.0.0.1:{ports['extender']}",
        "GPUPLANE_WEBHOOK_LISTEN": f"127.0.0.1:{ports['webhook']}",
        "GPUPLANE_TLS_CERT": str(server[0]),
        "GPUPLANE_TLS_KEY": str(server[1]),
        "GPUPLANE_CLIENT_CA": str(ca),
    }
    made = forked.run("manage", "bootstrap", environment=environment)
    assert made.poll() == 0, made.errors
    log = folder / "web.log"
    with forked.start("gpuplane.serve", environment=environment, log=log, new_session=True) as process:
        deadline = time.monotonic() + 60
        while not all(map(_listens, ports.values())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        credentials = json.loads((folder / "data" / "credentials.json").read_text())
        yield ports, ca, {"scheduler": scheduler, "stranger": stranger, None: None}, credentials
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def ask(doors, door, path, *, client=None):
    """POST an empty object through a TLS door; the status, or None where the handshake was refused."""
    ports, ca, clients, _ = doors
    context = ssl.create_default_context(cafile=str(ca))
    if clients[client] is not None:
        context.load_cert_chain(*clients[client])
    try:
        return httpx.post(f"https://127.0.0.1:{ports[door]}{path}", content=b"{}", verify=context).status_code
    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
        return None


@pytest.mark.parametrize(
    ("door", "path", "client", "want"),
    [
        pytest.param("extender", "/extender/prioritize", "scheduler", 200, id="scheduler with its certificate"),
        pytest.param("extender", "/extender/prioritize", None, None, id="no certificate, no handshake"),
        pytest.param("extender", "/extender/prioritize", "stranger", None, id="another authority's certificate"),
        pytest.param("extender", "/webhooks/pods/mutate", "scheduler", 404, id="no webhooks at the extender listener"),
        pytest.param("extender", "/admin/", "scheduler", 404, id="no pages through the extender listener"),
        pytest.param("webhook", "/extender/prioritize", None, 404, id="no extender through the webhook listener"),
        pytest.param("webhook", "/api/v1/nodes/", None, 404, id="no REST through the webhook listener"),
    ],
)
def test_tls_listeners(doors, door, path, client, want):
    assert ask(doors, door, path, client=client) == want


def test_webhook_listener_needs_no_certificate(doors):
    assert ask(doors, "webhook", "/webhooks/pods/mutate") in {200, 400}


def test_plain_http_finds_no_answer_at_a_tls_listener(doors):
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{doors[0]['extender']}/extender/prioritize", content=b"{}")


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        pytest.param("POST", "/extender/filter", 401, id="extender without a token"),
        pytest.param("POST", "/webhooks/pods/mutate", 401, id="webhook without a token"),
        pytest.param("POST", "/api/v1/agents/n1/samples/", 401, id="agent's frame without a token"),
        pytest.param("GET", "/api/v1/agents/n1/samples/", 405, id="agents post"),
        pytest.param("POST", "/api/v1/agents/NOT_A_NODE/samples/", 404, id="a name no node can have"),
        pytest.param("GET", "/api/v1/nodes/", 401, id="REST without a token"),
        pytest.param("GET", "/livez", 200, id="probes without a token"),
        pytest.param("GET", "/readyz", 200, id="ready"),
        pytest.param("GET", "/metrics", 200, id="scrapers without a token"),
        pytest.param("GET", "/static/admin/css/base.css", 200, id="files"),
        pytest.param("GET", "/static/../manage.py", 404, id="no way out of the files"),
        pytest.param("GET", "/static/%2e%2e/manage.py", 404, id="nor an encoded one"),
    ],
)
def test_main_listener(doors, method, path, want):
    answer = httpx.request(method, httpx.URL(f"http://127.0.0.1:{doors[0]['main']}").copy_with(raw_path=path.encode()))

    assert answer.status_code == want


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("/ws/agents/n1/", 401, id="agent without a token"),
        pytest.param("/ws/agents/NOT_A_NODE/", 404, id="a name no node can have"),
        pytest.param("/ws/runners/n1/", 401, id="runner without a token"),
        pytest.param("/ws/runners/NOT_A_NODE/", 404, id="a runner of a name no node can have"),
        pytest.param("/ws/nothing/", 404, id="no such stream"),
    ],
)
def test_sockets_refused_with_a_status(doors, path, want):
    with (
        pytest.raises(websockets.exceptions.InvalidStatus) as refused,
        websockets.sync.client.connect(
            f"ws://127.0.0.1:{doors[0]['main']}{path}", origin=websockets.Origin(f"http://127.0.0.1:{doors[0]['main']}")
        ),
    ):
        pytest.fail("the socket was accepted")
    assert refused.value.response.status_code == want


@pytest.mark.parametrize(("path", "of"), [("/extender/filter", "cluster_token"), ("/api/v1/simulations/", "api_token")])
def test_body_above_the_limit(doors, path, of):
    with socket.create_connection(("127.0.0.1", doors[0]["main"]), timeout=20) as link:
        token = doors[3][of]
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length:"
            f" {1 << 40}\r\n\r\n"
        )
        link.sendall(head.encode())
        assert link.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_listeners_stay_open_to_others_when_one_client_stalls(doors):
    with socket.create_connection(("127.0.0.1", doors[0]["extender"]), timeout=20):
        assert ask(doors, "extender", "/extender/prioritize", client="scheduler") == 200
