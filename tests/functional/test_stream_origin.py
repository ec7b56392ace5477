"""The browsers' stream over the real server: a page of another port of the same host may not open it."""

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.servers import redis, web


def opened(url, origin, headers):
    """Status of the handshake. Who is not signed in is told so once the stream is open."""

    async def go():
        try:
            async with connect(f"{url.replace('http', 'ws')}/ws/fleet/", origin=origin, additional_headers=headers):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("origin", "want"),
    [
        pytest.param("{url}", 101, id="our own page"),
        pytest.param("http://127.0.0.1:9", 403, id="another port"),
        pytest.param("https{rest}", 403, id="another scheme"),
        pytest.param("http://127.0.0.1", 403, id="the default port"),
        pytest.param(None, 403, id="no page"),
    ],
)
def test_who_may_open_the_stream(live_app, origin, want):
    """VIEW-6 a browser sends its cookie to every port of a host: the page's whole origin decides."""
    shown = None if origin is None else origin.format(url=live_app.url, rest=live_app.url.removeprefix("http"))
    assert opened(live_app.url, shown, {}) == want


@pytest.mark.parametrize(
    ("trusted", "origin", "want"),
    [
        pytest.param("127.0.0.1", "https{rest}", 101, id="a named proxy says TLS"),
        pytest.param("127.0.0.1", "http{rest}", 403, id="and the page came without"),
        pytest.param("192.0.2.1", "https{rest}", 403, id="anybody else says TLS"),
    ],
)
def test_behind_a_proxy(tmp_path, django_db_blocker, trusted, origin, want):
    with (
        django_db_blocker.unblock(),
        web.running(
            vendor="sqlite",
            folder=tmp_path,
            redis_url=redis.server_url("web"),
            settings={"FORWARDED_ALLOW_IPS": trusted},
            is_forked=True,
        ) as app,
    ):
        headers = {"X-Forwarded-Proto": "https"}
        assert opened(app.url, origin.format(rest=app.url.removeprefix("http")), headers) == want
