"""What every answer carries: the content policy, and over TLS `Secure` cookies and HSTS."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpuplane.middleware import CONTENT_POLICY
from tests.factories import PASSWORD
from tests.integration.test_sign_in_paths import addresses

pytestmark = pytest.mark.django_db
YEAR = "max-age=31536000"


@pytest.fixture
def root(settings):
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "gpuplane.example", "testserver"]
    return User.objects.create_superuser("root", password=PASSWORD)


@pytest.mark.parametrize("path", sorted({*addresses(), "/nowhere/", "/admin/nowhere/", "/api/nowhere/"}))
def test_every_answer_has_the_policy(root, path):
    """VIEW-6 pages, refusals, REST, its documentation and the admin alike; over TLS the browser is told to stay
    there.
    """
    client = Client(raise_request_exception=False)
    for signed_in in (False, True):
        if signed_in:
            client.force_login(root)
        answer = client.get(path, secure=True, headers={"Host": "gpuplane.example"})
        assert answer["Content-Security-Policy"] == CONTENT_POLICY
        assert answer["Strict-Transport-Security"] == YEAR
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Cross-Origin-Resource-Policy"] == "same-origin"
        if answer.get("Content-Type", "").startswith("text/html"):
            shown = answer.content.decode()
            assert not re.search(r"<script(?![^>]*\bsrc=)", shown), path


def test_the_policy_lets_no_text_of_a_page_run():
    assert "unsafe" not in CONTENT_POLICY
    assert "default-src 'self'" in CONTENT_POLICY


@pytest.mark.parametrize(
    ("host", "secure", "want"),
    [
        pytest.param("gpuplane.example", True, YEAR, id="behind TLS"),
        pytest.param("gpuplane.example:8443", True, YEAR, id="on another port"),
        pytest.param("gpuplane.example", False, None, id="plain HTTP: browsers would not believe it"),
        pytest.param("localhost:8000", True, None, id="localhost, which other programs share"),
        pytest.param("127.0.0.1", True, None, id="loopback"),
        pytest.param("[::1]:8000", True, None, id="loopback of IPv6"),
    ],
)
def test_who_is_redirected_to_tls(root, host, secure, want):
    answer = Client().get("/sign-in/", secure=secure, headers={"Host": host})
    assert answer.get("Strict-Transport-Security") == want


def test_hsts_can_be_left_out(root, settings):
    settings.GPUPLANE_HSTS_SECONDS = 0
    assert "Strict-Transport-Security" not in Client().get(
        "/sign-in/", secure=True, headers={"Host": "gpuplane.example"}
    )


@pytest.mark.parametrize("secure", [pytest.param(True, id="TLS"), pytest.param(False, id="plain HTTP")])
def test_cookies(root, secure):
    """VIEW-6 no cookie that came over TLS leaves without it; none is read by scripts or sent from other sites'
    forms.
    """
    client = Client(enforce_csrf_checks=True)
    at = {"secure": secure, "headers": {"Host": "gpuplane.example"}}
    client.get("/sign-in/", **at)
    said = {"username": "root", "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["csrftoken"].value}
    scheme = "https" if secure else "http"
    answer = client.post(
        "/sign-in/", said, secure=secure, headers={**at["headers"], "Origin": f"{scheme}://gpuplane.example"}
    )
    assert answer.status_code == 302
    cookies = answer.cookies
    assert set(cookies) == {"csrftoken", "sessionid"}
    for cookie in cookies.values():
        assert bool(cookie["secure"]) == secure
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
