"""Pods that wait are told why by an event of their own: once, again when the reason is another, never when it
is over.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.models import PodRefusal
from allocations.publish.pending_events import MOST
from allocations.publish.pending_events import write as write_pending_events
from nodes.models import Device
from nodes.services import devices_health
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World


def events(world: World) -> list[tuple[str, str]]:
    """(pod, message) of our events, the oldest first."""
    found: list[Any] = list(world.server.events.values())
    assert {one["reason"] for one in found} <= {"WaitingForDevices"}
    return [(one["involvedObject"]["name"], one["message"]) for one in found]


def tell(world: World, *, later: float = 3.0) -> int:
    cluster = world.backends.cluster
    assert cluster is not None
    return write_pending_events(cluster=cluster, now=database_now() + timedelta(seconds=later))


@pytest.fixture
def waiting(world: World) -> World:
    """Three nodes, none of which can serve `waits`."""
    world.node("n1", gpus=1)
    world.node("n2", gpus=1)
    world.node("n3", gpus=2)
    world.claim("two", count=2)
    world.place("holder", claim="two")
    world.pod("waits", claim="two")
    assert world.filter("waits") is None
    return world


FIRST = "2 of 3 nodes: fewer than 2 gpu devices; 1: fewer than 2 whole gpu devices free"


def test_reported_once_in_one_sentence(waiting: World) -> None:
    """VIEW-3 the event counts nodes by their reason, as explain does; asking again tells nothing new."""
    assert tell(waiting, later=0.0) == 0  # it may be over before anybody reads of it
    assert tell(waiting) == 1
    assert events(waiting) == [("waits", FIRST)]
    waiting.filter("waits")
    assert tell(waiting) == 0
    assert PodRefusal.objects.get(pod_name="waits").summary == FIRST


def test_reported_again_when_the_reason_is_another(waiting: World) -> None:
    """VIEW-3 other numbers of the same reasons are no news, another reason is."""
    assert tell(waiting) == 1
    waiting.node("n4", gpus=1)
    waiting.filter("waits")
    assert tell(waiting) == 0
    assert events(waiting) == [("waits", FIRST)]
    uuid = Device.objects.get(node__name="n3", minor=1).uuid
    devices_health(node_name="n3", health={uuid: "Xid 79"}, actor=SYSTEM, now=database_now())
    waiting.filter("waits")
    assert tell(waiting) == 1
    _, (name, message) = events(waiting)
    assert (name, "fewer than 2 healthy gpu devices" in message) == ("waits", True)


def test_a_namespace_without_events_delays_no_other(waiting: World) -> None:
    """VIEW-3 events of one namespace fail for the moment: pods of others are told, and its own at a later turn."""
    waiting.server.add_namespace("other")
    waiting.server.add_gpuclaim("two", {"devices": {"count": 2}}, namespace="other")
    PodRefusal.objects.update(first_at=database_now() - timedelta(minutes=1))
    first = PodRefusal.objects.get()
    PodRefusal.objects.create(
        pod_uid="elsewhere",
        namespace="other",
        pod_name="elsewhere",
        summary=first.summary,
        reasons=first.reasons,
        first_at=first.first_at + timedelta(seconds=1),
        last_at=first.last_at,
    )
    waiting.server.faults.append(Fault("POST", rf"/namespaces/{NAMESPACE}/events$", status=503, times=100))
    assert tell(waiting) == 1
    assert [name for name, _ in events(waiting)] == ["elsewhere"]
    waiting.server.faults.clear()
    assert tell(waiting) == 1
    assert [name for name, _ in events(waiting)] == ["elsewhere", "waits"]


def test_pods_with_long_names_are_each_reported(world: World) -> None:
    """Names of events are cut; two pods that begin alike are told both."""
    now = database_now()
    for number in range(2):
        PodRefusal.objects.create(
            pod_uid=f"7d1f{number}",
            namespace=NAMESPACE,
            pod_name="n" * 240 + str(number),
            summary="x",
            reasons={"no whole gpu device free": 1},
            first_at=now - timedelta(seconds=60),
            last_at=now,
        )
    assert tell(world) == 2
    assert len(events(world)) == 2


def test_no_event_for_a_pod_that_waits_no_more(waiting: World) -> None:
    waiting.remove("holder")
    waiting.reconcile()
    assert waiting.filter("waits") == "n3"
    assert tell(waiting) == 0
    PodRefusal.objects.update(last_at=database_now() - timedelta(minutes=11))
    assert tell(waiting) == 0
    assert events(waiting) == []


def test_a_rule_that_is_broken_is_reported_too(world: World) -> None:
    """CLAIM-3 VIEW-3 what a person has to mend."""
    world.node("n1", gpus=1)
    world.pod("lost", claim="nowhere")
    world.filter("lost")
    assert tell(world) == 1
    ((name, message),) = events(world)
    assert name == "lost"
    assert message.startswith("1 of 1 nodes: ")
    assert "nowhere" in message


def test_a_burst_is_reported_in_parts(world: World) -> None:
    """A thousand refusals are no thousand writes at once."""
    now = database_now()
    PodRefusal.objects.bulk_create(
        PodRefusal(
            pod_uid=f"u{number}",
            namespace=NAMESPACE,
            pod_name=f"p{number:03}",
            summary="x",
            reasons={"no whole gpu device free": 3},
            first_at=now - timedelta(seconds=200 - number),
            last_at=now,
        )
        for number in range(MOST + 5)
    )
    assert tell(world) == MOST
    assert tell(world) == 5
    assert tell(world) == 0
    assert events(world)[-1] == (f"p{MOST + 4:03}", "3 of 3 nodes: no whole gpu device free")


def test_an_api_server_that_is_away_is_asked_again(waiting: World) -> None:
    waiting.server.stop()
    assert tell(waiting) == 0
    assert PodRefusal.objects.get(pod_name="waits").event_reasons == []


def test_a_namespace_that_is_deleted_gets_no_more_events(waiting: World) -> None:
    """What the API server refuses for good counts as told."""
    PodRefusal.objects.update(namespace="gone")
    assert tell(waiting) == 0
    assert PodRefusal.objects.get(pod_name="waits").event_reasons != []
