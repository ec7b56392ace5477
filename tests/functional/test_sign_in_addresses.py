"""Guesses over the real server: whose word on the address counts, and what a browser is given over TLS."""

import re

import httpx
import pytest

from tests.factories import PASSWORD, UserFactory
from tests.servers import redis, web

MOST = 8
"""Failures of one name from one address."""


@pytest.fixture
def server(tmp_path, django_db_blocker):
    """A server with settings of its own."""
    with django_db_blocker.unblock():
        running = []

        def start(**settings):
            running.append(
                web.running(
                    vendor="sqlite",
                    folder=tmp_path,
                    redis_url=redis.server_url("web"),
                    settings=settings,
                    is_forked=True,
                )
            )
            return running[-1].__enter__()

        yield start
        for one in running:
            one.__exit__(None, None, None)


def guess(client, name, password, address, proto="http"):
    """The answer to one attempt, through a proxy's headers."""
    told = {"X-Forwarded-For": address, "X-Forwarded-Proto": proto}
    form = client.get("/sign-in/", headers=told)
    (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text)
    said = {"csrfmiddlewaretoken": token, "username": name, "password": password}
    cookie = f"csrftoken={form.cookies.get('csrftoken') or client.cookies.get('csrftoken')}"
    origin = {"Origin": str(client.base_url).replace("http", proto).rstrip("/")}
    return client.post("/sign-in/", data=said, headers={**told, **origin, "Cookie": cookie})


@pytest.mark.parametrize(
    ("trusted", "want"),
    [
        pytest.param("", 429, id="made up by the client"),
        pytest.param("192.0.2.1", 429, id="another proxy is named"),
        pytest.param("127.0.0.1", 401, id="told by a named proxy"),
    ],
)
def test_whose_address_counts(server, trusted, want):
    """VIEW-6 an address that the client makes up gives it no further tries."""
    app = server(FORWARDED_ALLOW_IPS=trusted)
    with httpx.Client(base_url=app.url, timeout=60) as client:
        for number in range(MOST):
            assert guess(client, "ann", "wrong", f"198.51.100.{number}").status_code == 401
        assert guess(client, "ann", "wrong", "198.51.100.99").status_code == want


def test_a_proxy_that_speaks_tls_is_believed(server):
    """VIEW-6 cookies are Secure where a named proxy has TLS, and the browser is told to stay there."""
    app = server(FORWARDED_ALLOW_IPS="127.0.0.1", GPUPLANE_ALLOWED_HOSTS="gpuplane.example")
    account = UserFactory(username="ann")
    with httpx.Client(base_url=app.url, timeout=60) as client:
        answer = guess(client, account.username, PASSWORD, "198.51.100.1", proto="https")
        assert answer.status_code == 302
        cookies = answer.headers.get_list("set-cookie")
        assert len(cookies) == 2
        assert all("Secure" in cookie and "HttpOnly" in cookie and "SameSite=Lax" in cookie for cookie in cookies)
        told = {"X-Forwarded-Proto": "https", "Host": "gpuplane.example"}
        assert client.get("/sign-in/", headers=told).headers["Strict-Transport-Security"] == "max-age=31536000"
