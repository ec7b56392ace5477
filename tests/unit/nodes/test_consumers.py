"""`WS /ws/fleet/` from a browser's side."""

import orjson
import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.db import DatabaseError

from nodes import consumers
from nodes.consumers import FleetConsumer
from nodes.live import hub
from nodes.live.fleet_frames import Condition
from tests.factories import NodeFactory, UserFactory

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
SIGNED_IN = User(pk=1, username="ann", is_active=True)


@pytest.fixture
def quick_hub(ledger_db, monkeypatch):
    """A hub that ticks fast and knows no samples."""
    NodeFactory(name="n1", gpus=2)
    made = hub.Hub(read_samples=dict, redis_down=lambda: False, tick_seconds=0.01)
    monkeypatch.setattr(hub, "HUB", made)
    return made


class Browser(ApplicationCommunicator):
    """The client's end of a socket (the package of channels' own needs daphne)."""

    def __init__(self, user):
        self.scope = {"type": "websocket", "path": "/ws/fleet/", "headers": [], "user": user}
        super().__init__(FleetConsumer.as_asgi(), self.scope)

    async def connect(self):
        await self.send_input({"type": "websocket.connect"})
        assert await self.receive_output(5) == {"type": "websocket.accept", "subprotocol": None}

    async def say(self, **message):
        await self.send_input({"type": "websocket.receive", **message})

    async def hear(self):
        message = await self.receive_output(5)
        assert message["type"] == "websocket.send"
        return message.get("bytes") or message["text"]

    async def leave(self):
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(5)


@pytest.mark.parametrize(
    "user",
    [
        pytest.param(AnonymousUser(), id="nobody"),
        pytest.param(None, id="no session at all"),
        pytest.param(User(pk=2, username="bob", is_active=False), id="an account switched off"),
    ],
)
async def test_who_is_not_signed_in_is_closed_with_the_reason(quick_hub, user):
    """VIEW-6 the live stream needs a sign-in."""
    communicator = Browser(user)
    await communicator.connect()
    assert (await communicator.receive_output(5))["code"] == 4401
    assert quick_hub.viewers == 0


async def test_a_browser_gets_layout_then_frames_and_all_again_when_it_asks(quick_hub):
    """VIEW-1 the stream starts with what there is and goes on with what changes."""
    communicator = Browser(SIGNED_IN)
    await communicator.connect()
    layout = orjson.loads(await communicator.hear())
    assert [node[0] for node in layout["nodes"]] == ["n1"]
    frames = [await communicator.hear() for _ in range(3)]
    assert [frame[3] for frame in frames] == [0, 1, 1]
    sequences = [int.from_bytes(frame[8:12], "little") for frame in frames]
    assert sequences == list(range(sequences[0], sequences[0] + 3))
    await communicator.say(text='{"ask": "full"}')
    while isinstance(answer := await communicator.hear(), bytes):
        assert answer[3] == 1
    assert orjson.loads(answer)["kind"] == "layout"
    assert (await communicator.hear())[3] == 0
    await communicator.leave()
    assert quick_hub.viewers == 0


async def test_whatever_else_a_browser_says_is_ignored(quick_hub):
    communicator = Browser(SIGNED_IN)
    await communicator.connect()
    for text in ("", "{", '{"ask": "everything"}', "x" * 10_000):
        await communicator.say(text=text)
    await communicator.say(bytes=b"\x00\xff")
    assert orjson.loads(await communicator.hear())["kind"] == "layout"
    assert [(await communicator.hear())[3] for _ in range(2)] == [0, 1]
    await communicator.leave()


async def test_two_browsers_share_one_computation(quick_hub):
    one, other = Browser(SIGNED_IN), Browser(SIGNED_IN)
    await one.connect()
    await other.connect()
    assert await one.hear() == await other.hear()
    assert await one.hear() == await other.hear()
    assert quick_hub.viewers == 2
    await one.leave()
    await other.leave()


async def test_a_database_that_is_away_is_said_and_the_last_picture_stays(quick_hub, monkeypatch):
    communicator = Browser(SIGNED_IN)
    await communicator.connect()
    await communicator.hear()

    def away():
        raise DatabaseError("gone")

    monkeypatch.setattr(quick_hub._rows, "refresh", away)
    while not (frame := await communicator.hear())[4] & Condition.DATABASE_DOWN:
        pass
    assert int.from_bytes(frame[28:32], "little") == 2
    await communicator.leave()


async def test_a_bug_in_the_hub_closes_the_socket_so_that_the_page_comes_again(quick_hub, monkeypatch):
    communicator = Browser(SIGNED_IN)
    await communicator.connect()
    await communicator.hear()

    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(quick_hub._rows, "refresh", broken)
    while (message := await communicator.receive_output(5))["type"] != "websocket.close":
        pass
    assert message["code"] == 1013
    assert quick_hub.viewers == 0
    await communicator.leave()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda session, user: session.delete(), id="signed out elsewhere"),
        pytest.param(lambda session, user: User.objects.filter(pk=user.pk).update(is_active=False), id="switched off"),
    ],
)
async def test_a_session_that_ends_ends_the_stream(quick_hub, monkeypatch, end):
    """VIEW-6 a stream outlives neither its session nor its account."""
    monkeypatch.setattr(consumers, "CHECK_FRAMES", 2)

    def sign_in():
        user = UserFactory()
        session = SessionStore()
        session.update({SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0]})
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.save()
        return session, user

    session, user = await database_sync_to_async(sign_in)()
    communicator = Browser(user)
    communicator.scope["session"] = session
    await communicator.connect()
    for _ in range(6):
        await communicator.hear()
    await database_sync_to_async(end)(session, user)
    while (message := await communicator.receive_output(5))["type"] != "websocket.close":
        pass
    assert message["code"] == 4401
    await communicator.leave()
