"""A web process as the chart starts it: TLS on the main listener, a webhook listener with a certificate, loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets.exceptions
import websockets.sync.client

from tests.certificates import Authority, Pair
from tests.servers import forked

NAMES = ("main", "extender", "webhook")


@dataclass(frozen=True)
class Doors:
    """Ports by name, the CA of the listeners, clients of the CAs of webhooks and extender, a token."""

    ports: dict[str, int]
    ca: Path
    apiserver: Pair
    stranger: Pair
    token: str

    def trusted(self, client: Pair | None = None) -> ssl.SSLContext:
        """The CA of the listeners, and a client's certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors-tls")
    ours, apiservers = Authority(folder / "ours"), Authority(folder / "apiservers")
    serving = ours.issue("server")
    ports = {name: _free_port() for name in NAMES}
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
        "GPUPLANE_DATA_DIR": str(folder / "data"),
        "GPUPLANE_SIMULATE": "0",
        "GPUPLANE_PORT": str(ports["main"]),
        "GPUPLANE_MAIN_TLS": "1",
        "GPUPLANE_EXTENDER_LISTEN": f"127.0.0.1:{ports['extender']}",
        "GPUPLANE_WEBHOOK_LISTEN": f"127.0.0.1:{ports['webhook']}",
        "GPUPLANE_TLS_CERT": str(serving.certificate),
        "GPUPLANE_TLS_KEY": str(serving.key),
        "GPUPLANE_WEBHOOK_CLIENT_CA": str(apiservers.certificate),
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
        token = json.loads((folder / "data" / "credentials.json").read_text())["cluster_token"]
        yield Doors(ports, ours.certificate, apiservers.issue("apiserver"), ours.issue("stranger"), token)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_the_main_listener_speaks_tls_alone(doors: Doors) -> None:
    """VIEW-6 probes, REST with a token and agents' sockets come by TLS; plain HTTP finds no answer."""
    address = f"127.0.0.1:{doors.ports['main']}"
    headers = {"Authorization": f"Bearer {doors.token}"}
    with httpx.Client(base_url=f"https://{address}", verify=doors.trusted(), headers=headers) as client:
        assert client.get("/livez").status_code == 200
        assert client.post("/extender/prioritize", content=b"{}").status_code == 200
    with (
        pytest.raises(websockets.exceptions.InvalidStatus) as refused,
        websockets.sync.client.connect(f"wss://{address}/ws/agents/n1/", ssl=doors.trusted()),
    ):
        pytest.fail("the socket was accepted")
    assert refused.value.response.status_code == 401
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{address}/livez", headers=headers)


@pytest.mark.parametrize(
    ("client", "want"),
    [
        pytest.param("apiserver", 200, id="the API server's certificate"),
        pytest.param(None, None, id="none"),
        pytest.param("stranger", None, id="a certificate of another CA"),
    ],
)
def test_only_the_api_server_comes_to_the_webhooks(doors: Doors, client: str | None, want: int | None) -> None:
    """CLAIM-7 where the cluster can give it a certificate nobody else is answered at all."""
    shown = None if client is None else getattr(doors, client)
    url = f"https://127.0.0.1:{doors.ports['webhook']}/webhooks/bindings/validate"
    try:
        status = httpx.post(url, content=b"{}", verify=doors.trusted(shown)).status_code
    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
        status = None
    assert status == want


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({"Content-Type": "application/json"}, 200, id="kube-scheduler"),
        pytest.param({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403, id="a page"),
        pytest.param({"Content-Type": "application/json", "Host": "evil.example"}, 403, id="a rebound name"),
        pytest.param({"Content-Type": "text/plain"}, 415, id="what a page may send unasked"),
    ],
)
def test_the_extender_on_loopback_is_for_programs(doors: Doors, headers: dict[str, str], want: int) -> None:
    """LEASE-1 as uvicorn hands the headers on."""
    url = f"http://127.0.0.1:{doors.ports['extender']}/extender/prioritize"
    assert httpx.post(url, content=b"{}", headers=headers).status_code == want
