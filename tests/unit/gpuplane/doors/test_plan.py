from pathlib import Path
from typing import Any

import pytest

from gpuplane.doors.plan import DoorRefused, Tls, doors

TLS: dict[str, Any] = {"certificate": Path("/c"), "key": Path("/k")}
MTLS: dict[str, Any] = TLS | {"client_ca": Path("/ca")}


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
def test_extender_door(listen, files, want_tls):
    main, extender = doors(host="127.0.0.1", port=8000, extender_listen=listen, **files)

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
    with pytest.raises(DoorRefused, match=want):
        doors(host="127.0.0.1", port=8000, **settings)


def test_webhook_door_asks_for_no_certificate():
    _, webhook = doors(host="127.0.0.1", port=8000, webhook_listen="0.0.0.0:9443", **MTLS)

    assert webhook.tls == Tls(Path("/c"), Path("/k"))
    assert webhook.permits("/webhooks/pods/mutate")
    assert not webhook.permits("/extender/bind")
    assert webhook.url == "https://localhost:9443"
