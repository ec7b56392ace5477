"""`WS /ws/fleet/` from a browser's side."""

import asyncio

import orjson
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.db import DatabaseError, InterfaceError

from nodes.consumers import signed_in
from nodes.consumers.fleet import FleetConsumer
from nodes.live.fleet_columns import COLUMNS
from nodes.live.fleet_frames import Condition
from nodes.live.hub import Hub
from tests.factories import NodeFactory, UserFactory, session_of
from tests.fleet_reader import Reader
from tests.sockets import Socket

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
SIGNED_IN = User(pk=1, username="ann", is_active=True)


@pytest.fixture
def quick_hub(ledger_db):
    """A hub that ticks fast and knows no samples."""
    NodeFactory(name="n1", gpus=2)
    return Hub(held_devices=list, read_samples=dict, redis_down=lambda: False, tick_seconds=0.01)


class Browser(Socket):
    """A browser that looks at the fleet."""

    def __init__(self, hub, user, query=b""):
        super().__init__(FleetConsumer.as_asgi(hub=hub), user, query_string=query)


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
    communicator = Browser(quick_hub, user)
    await communicator.connect()
    assert (await communicator.receive_output(5))["code"] == 4401
    assert len(quick_hub._viewers) == 0


async def test_a_browser_gets_layout_then_frames_and_all_again_when_it_asks(quick_hub):
    """VIEW-1 the stream starts with what there is and goes on with what changes."""
    communicator = Browser(quick_hub, SIGNED_IN)
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
    assert len(quick_hub._viewers) == 0


@pytest.mark.parametrize(
    ("query", "want"),
    [
        pytest.param(b"columns=utilisation", ["utilisation", "flags"], id="one"),
        pytest.param(b"columns=power,core", ["core", "power", "flags"], id="two"),
        pytest.param(b"columns=", ["flags"], id="none: the flags go along"),
        pytest.param(b"columns=%00,cores", ["flags"], id="none that exists"),
        pytest.param(b"", list(COLUMNS), id="nothing said: all"),
    ],
)
async def test_the_first_frame_is_of_the_columns_in_the_address(quick_hub, query, want):
    """VIEW-1 a browser is sent what it looks at, from its first frame on."""
    communicator = Browser(quick_hub, SIGNED_IN, query)
    await communicator.connect()
    await communicator.hear()
    assert list(Reader().take(await communicator.hear()).codings) == want
    await communicator.leave()


async def test_a_browser_looks_elsewhere_without_a_new_layout(quick_hub):
    """VIEW-1 another measure needs one message, and every frame can be applied."""
    communicator = Browser(quick_hub, SIGNED_IN, b"columns=utilisation")
    await communicator.connect()
    await communicator.hear()
    reader = Reader().take(await communicator.hear())
    await communicator.say(text='{"ask": "columns", "columns": ["temperature", "nvlink"]}')
    while "nvlink" not in reader.codings:
        reader.take(await communicator.hear())
    assert list(reader.codings) == ["temperature", "nvlink", "flags"]
    reader.take(await communicator.hear())
    assert list(reader.codings) == ["temperature", "nvlink", "flags"]
    await communicator.leave()


async def test_columns_asked_for_before_the_first_frame_count(quick_hub, monkeypatch):
    """VIEW-1 a choice is not lost while the server finds out whether the user is still signed in."""
    begin = asyncio.Event()
    check = FleetConsumer._still_signed_in

    async def slow(self):
        await begin.wait()
        return await check(self)

    monkeypatch.setattr(FleetConsumer, "_still_signed_in", slow)
    communicator = Browser(quick_hub, SIGNED_IN, b"columns=utilisation")
    await communicator.connect()
    await communicator.say(text='{"ask": "columns", "columns": ["power"]}')
    await communicator.say(text='{"ask": "full"}')
    assert await communicator.receive_nothing()
    begin.set()
    await communicator.hear()
    assert list(Reader().take(await communicator.hear()).codings) == ["power", "flags"]
    await communicator.leave()


async def test_whatever_else_a_browser_says_is_ignored(quick_hub):
    communicator = Browser(quick_hub, SIGNED_IN)
    await communicator.connect()
    for text in ("", "{", '{"ask": "everything"}', '{"ask": "columns", "columns": [1]}', "[]", "x" * 10_000):
        await communicator.say(text=text)
    await communicator.say(bytes=b"\x00\xff")
    assert orjson.loads(await communicator.hear())["kind"] == "layout"
    assert [(await communicator.hear())[3] for _ in range(2)] == [0, 1]
    await communicator.leave()


async def test_two_browsers_share_one_computation(quick_hub):
    one, other = Browser(quick_hub, SIGNED_IN), Browser(quick_hub, SIGNED_IN)
    await one.connect()
    await other.connect()
    assert await one.hear() == await other.hear()
    assert await one.hear() == await other.hear()
    assert len(quick_hub._viewers) == 2
    await one.leave()
    await other.leave()


@pytest.mark.parametrize("error", [DatabaseError, InterfaceError])
async def test_a_database_that_is_away_is_said_and_the_last_state_stays(quick_hub, monkeypatch, error):
    communicator = Browser(quick_hub, SIGNED_IN)
    await communicator.connect()
    await communicator.hear()
    reader = Reader().take(await communicator.hear())

    def away():
        raise error("gone")

    monkeypatch.setattr(quick_hub._rows, "refresh", away)
    while not reader.take(await communicator.hear()).header["conditions"] & Condition.DATABASE_DOWN:
        pass
    assert reader.header["rows"] == len(reader.values["core"]) == 2
    await communicator.leave()


async def test_a_bug_in_the_hub_closes_the_socket_so_that_the_page_comes_again(quick_hub, monkeypatch):
    communicator = Browser(quick_hub, SIGNED_IN)
    await communicator.connect()
    await communicator.hear()

    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(quick_hub._rows, "refresh", broken)
    while (message := await communicator.receive_output(5))["type"] != "websocket.close":
        pass
    assert message["code"] == 1013
    assert len(quick_hub._viewers) == 0
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
    monkeypatch.setattr(signed_in, "CHECK_SENT", 2)

    def sign_in():
        user = UserFactory()
        return session_of(user), user

    session, user = await database_sync_to_async(sign_in)()
    communicator = Browser(quick_hub, user)
    communicator.scope["session"] = session
    await communicator.connect()
    for _ in range(6):
        await communicator.hear()
    await database_sync_to_async(end)(session, user)
    while (message := await communicator.receive_output(5))["type"] != "websocket.close":
        pass
    assert message["code"] == 4401
    await communicator.leave()
