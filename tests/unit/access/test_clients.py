"""Whoever works for a client is told when it leaves."""

from types import SimpleNamespace

from django.test import RequestFactory

from access.clients import Client, client_of
from gpuplane.listeners.disconnects import watched


def test_callbacks_are_called_when_it_leaves_and_not_after_they_are_over():
    client, told = Client(), []
    with client.on_disconnect(lambda: told.append("over")):
        assert told == []
    with client.on_disconnect(lambda: told.append("first")):
        client.disconnect()
        assert told == ["first"]
        assert client.gone
        with client.on_disconnect(lambda: told.append("late")):
            assert told == ["first", "late"]


def test_without_a_server_nobody_leaves():
    assert not client_of(RequestFactory().get("/")).gone


async def test_the_application_in_front_of_django_hears_the_connection_end():
    seen = []

    async def app(scope, receive, _send):
        client = client_of(SimpleNamespace(scope=scope))
        seen.append((await receive())["type"])
        seen.append(client.gone)
        seen.append((await receive())["type"])
        seen.append(client.gone)

    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive():
        return next(messages)

    async def send(_message):
        raise AssertionError

    await watched(app)({"type": "http", "path": "/"}, receive, send)
    assert seen == ["http.request", False, "http.disconnect", True]
