"""`WS /ws/nodes/<name>/` and `WS /ws/devices/<id>/` from a browser's side."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from agent.protocol import Details, DeviceDetails, Sample
from audit.choices import EventKind
from audit.services import record
from nodes.consumers import one_node
from nodes.consumers.one_node import DeviceConsumer, NodeConsumer
from nodes.live import flush
from nodes.live.samples import SampleTable
from nodes.models import Device, Node
from tests.extender import bound, filtered, pod_manifest
from tests.factories import NodeFactory
from tests.sockets import Socket

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
SIGNED_IN = User(pk=1, username="ann", is_active=True)


class World:
    """A node of two GPUs, and the table that its agent fills."""

    def __init__(self) -> None:
        self.table = SampleTable()
        self.node = NodeFactory(name="n1", gpus=2)
        self.devices = list(Device.objects.filter(node=self.node).order_by("minor"))
        self.seq = 0

    def sample(self, *utilisation: int) -> None:
        self.seq += 1
        frame = Sample("b", self.seq, 1.0, list(utilisation), devices=[device.uuid for device in self.devices])
        self.table.put("n1", frame, now=float(self.seq), received_at=time.time())

    def details(self) -> None:
        self.seq += 1
        frame = Details("b", self.seq, 1.0, [DeviceDetails(ecc_corrected=5), DeviceDetails()])
        self.table.put_details("n1", frame, now=float(self.seq), received_at=time.time())


@pytest.fixture
def world(ledger_db: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(flush, "TABLE", made.table)
    monkeypatch.setattr(flush, "ensure_running", lambda: None)
    monkeypatch.setattr(flush._Running, "flusher", None)
    monkeypatch.setattr(one_node, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(one_node, "CHANGES_SECONDS", 0.0)
    return made


def at_node(name: str = "n1", user: Any = SIGNED_IN) -> Socket:
    return Socket(NodeConsumer.as_asgi(), user, url_route={"kwargs": {"name": name}})


def at_device(pk: int, user: Any = SIGNED_IN) -> Socket:
    return Socket(DeviceConsumer.as_asgi(), user, url_route={"kwargs": {"device_id": pk}})


async def heard(socket: Socket, *, changes: bool = False) -> Any:
    """The next message: where changes are asked for the next that tells of one, else the next that does not."""
    while True:
        message = orjson.loads(await socket.hear())
        if (message["kind"] == "changed") == changes:
            return message


async def test_a_node_second_by_second(world: World) -> None:
    """VIEW-1 figures and details of all its devices, then what changes."""
    world.sample(10, 20)
    world.details()
    socket = at_node()
    await socket.connect()
    first = await heard(socket)
    assert first["columns"]["utilisation_percent"] == [10, 20]
    assert (await heard(socket))["devices"][world.devices[0].uuid]["ecc"] == [5, None]
    world.sample(10, 30)
    assert (await heard(socket))["columns"] == {"utilisation_percent": [10, 30]}
    await socket.leave()


async def test_one_device_of_it(world: World) -> None:
    """VIEW-1 a device's page."""
    world.sample(10, 20)
    socket = at_device(world.devices[1].pk)
    await socket.connect()
    first = await heard(socket)
    assert (first["devices"], first["columns"]["utilisation_percent"]) == ([world.devices[1].uuid], [20])
    await socket.leave()


async def test_a_node_of_which_nobody_speaks(world: World) -> None:
    socket = at_node()
    await socket.connect()
    assert await heard(socket) == {"kind": "silent", "since": None}
    await socket.leave()


def of_health(world: World) -> None:
    Device.objects.filter(pk=world.devices[0].pk).update(healthy=False, health_reason="XID 79")


def of_a_holder(world: World) -> None:
    pod = pod_manifest("p1", resources={"nvidia.com/gpu": "1"})
    assert bound(pod, filtered(pod, ["n1"])) == ""


def of_the_nodes_state(world: World) -> None:
    Node.objects.update(state="not-ready", problem="the agent is silent")


def of_what_happened(world: World) -> None:
    record(kind=EventKind.NODE_INVENTORY, message="inventory changed", actor="ann", now=timezone.now(), node="n1")


def of_details(world: World) -> None:
    world.details()


@pytest.mark.parametrize("at", [pytest.param("node", id="a node's page"), pytest.param("device", id="a device's page")])
@pytest.mark.parametrize(
    ("change", "pages"),
    [
        pytest.param(of_health, {"node", "device"}, id="health"),
        pytest.param(of_a_holder, {"node", "device"}, id="holders"),
        pytest.param(of_the_nodes_state, {"node", "device"}, id="the node's state"),
        pytest.param(of_what_happened, {"node", "device"}, id="events"),
        pytest.param(of_details, {"device"}, id="processes"),
    ],
)
async def test_a_change_is_reported(world: World, at: str, change: Callable[[World], None], pages: set[str]) -> None:
    """VIEW-1 at first and with each change, and never when only time went by."""
    socket = at_node() if at == "node" else at_device(world.devices[0].pk)
    await socket.connect()
    await heard(socket, changes=True)
    world.sample(10, 20)
    if at == "device":
        await heard(socket, changes=True)  # its agent speaks again: what processes it has counts again
    else:
        await heard(socket)
    assert await socket.receive_nothing(0.2)
    await database_sync_to_async(change)(world)
    if at in pages:
        await heard(socket, changes=True)
    else:
        assert (await heard(socket))["kind"] == "details"
    await socket.leave()


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
async def test_without_the_database_the_stream_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """VIEW-1 what the agent says is shown whether or not anybody can tell what changed."""

    def down(_: str) -> bytes:
        raise error("no connection")

    monkeypatch.setattr(one_node, "node_digest", down)
    world.sample(10, 20)
    socket = at_node()
    await socket.connect()
    assert orjson.loads(await socket.hear())["kind"] == "now"
    world.sample(10, 30)
    assert orjson.loads(await socket.hear())["kind"] == "now"
    await socket.leave()


@pytest.mark.parametrize("user", [AnonymousUser(), None, User(pk=2, is_active=False)], ids=["nobody", "none", "off"])
async def test_who_is_not_signed_in(world: World, user: Any) -> None:
    """VIEW-6 closed, with the reason."""
    for socket in (at_node(user=user), at_device(world.devices[0].pk, user=user)):
        await socket.connect()
        assert await socket.closed() == 4401


async def test_unknown_names_are_404(world: World) -> None:
    for socket in (at_node("n9"), at_device(10**9)):
        await socket.connect()
        assert await socket.closed() == 4404


async def test_a_defect_closes_the_socket_so_that_the_page_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(one_node, "read_node", broken)
    socket = at_node()
    await socket.connect()
    assert await socket.closed() == 1011


async def test_what_a_browser_says_is_ignored(world: World) -> None:
    world.sample(10, 20)
    socket = at_node()
    await socket.connect()
    await socket.say(text="{")
    await socket.say(bytes=b"\xff")
    assert (await heard(socket))["kind"] == "now"
    await socket.leave()
    assert await database_sync_to_async(Device.objects.count)() == 2
