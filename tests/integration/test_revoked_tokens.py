"""A token that is revoked, or whose account is shut, opens nothing any more: at once, in every process, and on sockets
that are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.db import connections
from knox.models import AuthToken

from access import changes, tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.models import Profile
from access.services import password_set, role_set, user_active_set
from access.sockets import SOCKETS
from access.token_services import agent_token, token_end_set, token_revoke, tokens_revoke
from gpuplane import application
from gpuplane.listeners.node_sockets import SESSIONS_MOST
from gpuplane.listeners.threads import Lanes
from nodes.consumers.one_node import NodeConsumer
from nodes.live import flush
from storage.clock import database_now
from storage.redis_listener import Listener
from tests.door import Closing
from tests.factories import NodeFactory, UserFactory, session_of
from tests.servers.redis import Mortal
from tests.sockets import Socket

sqlite = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)


@pytest.fixture
def app(ledger_db: object, monkeypatch: pytest.MonkeyPatch) -> application.Application:
    """The application, whose threads leave no connection behind."""
    monkeypatch.setattr(application, "Lanes", partial(Lanes, Closing))
    monkeypatch.setattr(flush, "ensure_running", lambda: None)
    return application.Application()


@pytest.fixture(autouse=True)
async def _no_sockets_left() -> AsyncIterator[None]:
    yield
    assert not SOCKETS._open


def agent(app: application.Application, token: str) -> ApplicationCommunicator:
    """The agent of n1, about to connect."""
    headers = [(b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "websocket",
        "path": "/ws/agents/n1/",
        "headers": headers,
        "extensions": {"websocket.http.response": {}},
    }
    return ApplicationCommunicator(app, scope)


async def connected(app: application.Application, token: str) -> ApplicationCommunicator:
    """Connected."""
    socket = agent(app, token)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(10))["type"] == "websocket.accept"
    return socket


def on_the_side(work: Callable[[], Any]) -> Any:
    """Run as another request does, in a thread of its own."""

    def run() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    return asyncio.to_thread(run)


def _by(**more: Any) -> dict[str, Any]:
    return {"actor": SYSTEM, "now": database_now(), **more}


def _in_another_process(work: Callable[[], Any]) -> Callable[[], Any]:
    """This process hears nothing of it."""

    def run() -> None:
        before, changes.apply_change = changes.apply_change, lambda account: None
        try:
            work()
        finally:
            changes.apply_change = before

    return run


ENDS: dict[str, Callable[[], Any]] = {
    "the token is revoked": lambda: token_revoke(token=AuthToken.objects.get(), **_by()),
    "all tokens of the account are": lambda: tokens_revoke(user=User.objects.get(), **_by()),
    "a fresh one is issued": lambda: agent_token(node="n1", **_by()),
    "the account is shut": lambda: user_active_set(user=User.objects.get(), active=False, **_by()),
}


@sqlite
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("told", [True, False], ids=["told", "found out"])
async def test_an_agents_session_ends_with_its_token(app: application.Application, end: str, told: bool) -> None:
    """VIEW-6 the session is closed, not the frame refused; a process that was not told finds out by itself."""
    token = await on_the_side(lambda: agent_token(node="n1", **_by()))
    socket = await connected(app, token)
    work = ENDS[end] if told else _in_another_process(ENDS[end])
    await on_the_side(work)
    if not told:
        assert len(SOCKETS._open) == 1
        assert await SOCKETS.check() == 1
    closed = await socket.receive_output(10)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)
    assert "revoked" in closed["reason"]
    await socket.wait(10)
    tokens.forget()  # as `changes` does, or FRESH_SECONDS
    again = agent(app, token)
    await again.send_input({"type": "websocket.connect"})
    assert (await again.receive_output(10))["status"] == 401
    await again.wait(10)


@sqlite
async def test_a_session_whose_token_still_counts_goes_on(app: application.Application) -> None:
    """VIEW-6 a look ends nobody else's, and one of an account whose scope is another now, or whose time is over."""
    token = await on_the_side(lambda: agent_token(node="n1", **_by()))
    socket = await connected(app, token)
    assert await SOCKETS.check() == 0
    other = UserFactory
    await on_the_side(lambda: tokens_revoke(user=other(), **_by()))
    await on_the_side(lambda: token_end_set(token=AuthToken.objects.get(), days=1, **_by()))
    assert await socket.receive_nothing(0.3)
    await on_the_side(lambda: AuthToken.objects.update(expiry=database_now() - timedelta(seconds=1)))
    assert await SOCKETS.check() == 1
    assert (await socket.receive_output(10))["code"] == 1012
    await socket.wait(10)


@sqlite
async def test_a_node_has_few_sessions_at_one_time(app: application.Application) -> None:
    """VIEW-6 the oldest ends, told why; whoever has one token takes no more than these places of a listener."""
    token = await on_the_side(lambda: agent_token(node="n1", **_by()))
    sockets = [await connected(app, token) for _ in range(SESSIONS_MOST)]
    assert await sockets[0].receive_nothing(0.1)
    newest = await connected(app, token)
    closed = await sockets[0].receive_output(10)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1012)
    assert "has begun 4 times since" in closed["reason"]
    await sockets[0].wait(10)
    assert await sockets[1].receive_nothing(0.1)
    for socket in (*sockets[1:], newest):
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(10)
    assert not app._agents.sessions._of


@sqlite
async def test_a_session_of_another_scope_now(app: application.Application) -> None:
    token = await on_the_side(lambda: agent_token(node="n1", **_by()))
    socket = await connected(app, token)
    await on_the_side(lambda: Profile.objects.update(scope=TokenScope.METRICS, node=""))
    assert await SOCKETS.check() == 1
    assert (await socket.receive_output(10))["code"] == 1012
    await socket.wait(10)


@sqlite
async def test_the_server_that_stops_is_not_taken_for_a_revocation(app: application.Application) -> None:
    token = await on_the_side(lambda: agent_token(node="n1", **_by()))
    socket = await connected(app, token)
    socket.stop(exceptions=False)
    with pytest.raises(asyncio.CancelledError):
        await socket.future
    assert socket.output_queue.empty()


@sqlite
async def test_a_browsers_stream_ends_when_its_account_is_shut(ledger_db: object) -> None:
    """VIEW-6 at once, not with the sixtieth message."""
    await on_the_side(lambda: NodeFactory(name="n1", gpus=1))
    user = await on_the_side(UserFactory)
    browser = Socket(NodeConsumer.as_asgi(), user, url_route={"kwargs": {"name": "n1"}})
    checks: asyncio.Queue[bool] = asyncio.Queue()

    async def check() -> bool:
        found = await sync_to_async(User.objects.filter(pk=user.pk, is_active=True).exists)()
        checks.put_nowait(found)
        return found

    await browser.connect()
    (entry,) = SOCKETS._open
    entry.check = check  # the socket of this test has no session
    await on_the_side(lambda: role_set(user=user, role=Role.OPERATOR, **_by()))
    async with asyncio.timeout(10):
        assert await checks.get()
        await on_the_side(lambda: user_active_set(user=user, active=False, **_by()))
        assert await browser.closed() == 4401
        assert not await checks.get()
    await browser.leave()


@sqlite
@pytest.mark.parametrize("shut", [False, True], ids=["goes on", "shut meanwhile"])
async def test_a_stream_that_begins_while_its_account_is_shut(ledger_db: object, shut: bool) -> None:
    """VIEW-6 between the look at the session and the socket's place among those that are told."""
    await on_the_side(lambda: NodeFactory(name="n1", gpus=1))
    user = await on_the_side(UserFactory)
    store = await on_the_side(lambda: session_of(user))
    if shut:
        await on_the_side(lambda: user_active_set(user=User.objects.get(pk=user.pk), active=False, **_by()))
    browser = Socket(NodeConsumer.as_asgi(), user, url_route={"kwargs": {"name": "n1"}}, session=store)
    await browser.connect()
    async with asyncio.timeout(10):
        if shut:
            assert await browser.closed() == 4401
        else:
            assert await browser.hear()
    await browser.leave()


async def test_every_process_hears_of_a_change(redis_url: str, settings: Any) -> None:
    """VIEW-6 over Redis, after the subscription of each; what cannot be read means everybody."""
    settings.GPUPLANE_REDIS_URL = redis_url
    heard: list[asyncio.Queue[str]] = [asyncio.Queue(), asyncio.Queue()]
    listeners = [Listener(redis_url, [changes.subscription(queue.put_nowait)]) for queue in heard]
    tasks = [asyncio.create_task(listener.run()) for listener in listeners]
    async with asyncio.timeout(20):
        for queue in heard:
            assert await queue.get() == "", "what was said before nobody heard"
        await asyncio.to_thread(changes._publish, "olga")
        assert [await queue.get() for queue in heard] == ["olga", "olga"]
    await _ended(tasks)


@pytest.mark.parametrize("said", [b"\xff", b"[]", b'{"account": 5}', b"{}"])
def test_what_cannot_be_read_means_everybody(said: bytes) -> None:
    assert changes._account_in(said) == ""


async def test_redis_that_comes_back_is_heard_again(mortal_redis: Mortal) -> None:
    """VIEW-6 whoever could not listen forgets everything once it can."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    listener = Listener(mortal_redis.url, [changes.subscription(queue.put_nowait)])
    task = asyncio.create_task(listener.run())
    async with asyncio.timeout(60):
        assert await queue.get() == ""
        await asyncio.to_thread(mortal_redis.stop)
        await asyncio.to_thread(mortal_redis.start)
        assert await queue.get() == ""
        assert listener.listening.is_set()
    await _ended([task])


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@sqlite
def test_without_redis_the_process_itself_knows_at_once(ledger_db: object) -> None:
    """VIEW-6 and the service does not fail for it."""
    user = UserFactory(role=Role.ADMIN)
    token = tokens.issue(user)
    assert tokens.verify(token) is not None
    tokens_revoke(user=user, **_by())
    assert tokens.verify_cached(token) is None
    assert tokens.verify(token) is None


@sqlite
def test_a_role_that_is_taken_is_gone_from_memory(ledger_db: object) -> None:
    user = UserFactory(role=Role.ADMIN)
    token = tokens.issue(user)
    found = tokens.verify(token)
    assert found is not None
    assert found.role == Role.ADMIN
    role_set(user=user, role=Role.VIEWER, **_by())
    found = tokens.verify(token)
    assert found is not None
    assert found.role == Role.VIEWER
    password_set(user=user, password="a long and quiet river", **_by())
    assert tokens.verify_cached(token) is None
