from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplane.listeners import plan
from gpuplane.listeners.plan import ListenAddressRefused, Tls
from gpuplane.settings import variables

TLS: dict[str, Any] = {"tls_cert": Path("/c"), "tls_key": Path("/k")}
MTLS: dict[str, Any] = TLS | {"client_ca": Path("/ca")}


def listen_addresses(*, port: int = 8000, **given: Any) -> tuple[plan.ListenAddress, ...]:
    """The listeners by these settings, by their names without the prefix, and else the defaults."""
    values = variables.read({}) | {name.upper(): value for name, value in given.items()}
    settings: Any = SimpleNamespace(**{f"GPUPLANE_{name}": value for name, value in values.items()})
    return plan.listen_addresses(settings, port=port)


@pytest.mark.parametrize(
    ("listen", "files", "want_tls"),
    [
        pytest.param("127.0.0.1:9000", {}, None, id="loopback without a scheme is plain"),
        pytest.param("127.0.0.1:9000", MTLS, None, id="loopback stays plain when certificates are set"),
        pytest.param("http://127.0.0.1:9000", {}, None, id="http on loopback"),
        pytest.param("[::1]:9000", {}, None, id="loopback of IPv6"),
        pytest.param("localhost:9000", {}, None, id="localhost by name"),
        pytest.param("127.9.9.9:9000", {}, None, id="anything in 127/8 is loopback"),
        pytest.param(
            "https://127.0.0.1:9000", MTLS, Tls(Path("/c"), Path("/k"), Path("/ca")), id="https on loopback when asked"
        ),
        pytest.param(
            "10.0.0.5:9000", MTLS, Tls(Path("/c"), Path("/k"), Path("/ca")), id="another address is HTTPS by itself"
        ),
        pytest.param("https://0.0.0.0:9000", MTLS, Tls(Path("/c"), Path("/k"), Path("/ca")), id="https everywhere"),
    ],
)
def test_extender_listener(listen, files, want_tls):
    main, extender = listen_addresses(host="127.0.0.1", port=8000, extender_listen=listen, **files)

    assert (main.bearer, main.tls, main.prefixes) == (True, None, ())
    assert (extender.bearer, extender.tls, extender.port) == (False, want_tls, 9000)
    assert extender.permits("/extender/filter")
    assert not extender.permits("/webhooks/pods/mutate")
    assert not extender.permits("/")
    assert main.permits("/extender/filter")


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({"extender_listen": "http://10.0.0.5:1"}, "only for loopback", id="plain HTTP elsewhere"),
        pytest.param({"extender_listen": "http://0.0.0.0:1"} | MTLS, "only for loopback", id="plain HTTP everywhere"),
        pytest.param({"extender_listen": "http://gpu.example:1"} | MTLS, "only for loopback", id="plain HTTP by name"),
        pytest.param({"extender_listen": "10.0.0.5:1"}, "GPUPLANE_TLS_CERT", id="HTTPS without a certificate"),
        pytest.param({"extender_listen": "10.0.0.5:1"} | TLS, "GPUPLANE_CLIENT_CA", id="HTTPS without a client CA"),
        pytest.param({"extender_listen": "https://127.0.0.1:1"} | TLS, "GPUPLANE_CLIENT_CA", id="also on loopback"),
        pytest.param({"webhook_listen": "127.0.0.1:1"}, "GPUPLANE_TLS_CERT", id="webhooks without a certificate"),
        pytest.param({"webhook_listen": "http://127.0.0.1:1"} | TLS, "only TLS", id="webhooks over plain HTTP"),
    ],
)
def test_refused(settings, want):
    with pytest.raises(ListenAddressRefused, match=want):
        listen_addresses(host="127.0.0.1", port=8000, **settings)


def test_webhook_listener_asks_for_no_certificate():
    _, webhook = listen_addresses(host="127.0.0.1", port=8000, webhook_listen="0.0.0.0:9443", **MTLS)

    assert webhook.tls == Tls(Path("/c"), Path("/k"))
    assert webhook.permits("/webhooks/pods/mutate")
    assert not webhook.permits("/extender/bind")
    assert webhook.url == "https://localhost:9443"


def test_webhook_listener_asks_for_a_certificate_of_its_own_ca():
    """The extender's clients are not the API server: each door has its CA."""
    _, extender, webhook = listen_addresses(
        host="127.0.0.1",
        port=8000,
        extender_listen="https://0.0.0.0:8443",
        webhook_listen="0.0.0.0:9443",
        webhook_client_ca=Path("/apiserver-ca"),
        **MTLS,
    )

    assert webhook.tls == Tls(Path("/c"), Path("/k"), Path("/apiserver-ca"))
    assert extender.tls == Tls(Path("/c"), Path("/k"), Path("/ca"))
    assert (webhook.anonymous, webhook.plain) == (False, False)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({}, {"main": "", "extender": "plain", "webhook": "anonymous"}, id="as the chart has it"),
        pytest.param(
            {"webhook_client_ca": Path("/ca")},
            {"main": "", "extender": "plain", "webhook": ""},
            id="the API server shows a certificate",
        ),
    ],
)
def test_which_listeners_authenticate_nobody(settings, want):
    planned = listen_addresses(
        host="0.0.0.0", port=8000, extender_listen="127.0.0.1:8001", webhook_listen="0.0.0.0:9443", **TLS, **settings
    )

    assert {door.name: "plain" if door.plain else "anonymous" if door.anonymous else "" for door in planned} == want


def test_main_listener_speaks_tls_when_configured():
    (main,) = listen_addresses(host="0.0.0.0", port=8000, main_tls=True, **MTLS)

    assert main.tls == Tls(Path("/c"), Path("/k")), "no client certificate is asked of people and agents"
    assert (main.bearer, main.url) == (True, "https://localhost:8000")
    with pytest.raises(ListenAddressRefused, match="GPUPLANE_MAIN_TLS=1: needs GPUPLANE_TLS_CERT"):
        listen_addresses(host="0.0.0.0", port=8000, main_tls=True)


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/ws/agents/n1/", True),
        ("/ws/runners/n1/", True),
        ("/api/v1/agents/n1/samples/", True),
        ("/livez", True),
        ("/readyz", True),
        ("/metrics", True),
        ("/", False),
        ("/api/v1/nodes/", False),
        ("/extender/bind", False),
        ("/webhooks/pods/mutate", False),
        ("/admin/", False),
        ("/ws/fleet/", False),
    ],
)
def test_a_process_for_agents_alone_leads_nowhere_else(path, want):
    (main,) = listen_addresses(host="0.0.0.0", port=8000, agents_only=True)

    assert main.permits(path) is want
