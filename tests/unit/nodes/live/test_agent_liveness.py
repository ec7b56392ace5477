"""When agents were heard, and what silence does to their nodes."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from audit.models import Event
from nodes.choices import NodeState
from nodes.live.agent_liveness import (
    DEAD_LISTENER_SECONDS,
    LISTENER_SECONDS,
    NOT_READY_PROBLEM,
    SUSPECT_PROBLEM,
    Noticed,
    Writer,
    agents_seen,
    listener_mark,
    listening_since_of,
    notice_silent,
)
from nodes.live.samples import LastHeard
from nodes.models import Device, Node
from tests.factories import LONG_AGO, NodeFactory

pytestmark = pytest.mark.django_db
NOW = LONG_AGO + timedelta(days=1)


def _ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("state", "problem", "silent_for", "want"),
    [
        pytest.param("ready", "", 3, ("ready", ""), id="heard"),
        pytest.param("ready", "", 11, ("suspect", SUSPECT_PROBLEM), id="silent for 11 s"),
        pytest.param("ready", "", 41, ("not-ready", NOT_READY_PROBLEM), id="silent for 41 s"),
        pytest.param("suspect", SUSPECT_PROBLEM, 41, ("not-ready", NOT_READY_PROBLEM), id="suspect and still silent"),
        pytest.param("suspect", SUSPECT_PROBLEM, 2, ("ready", ""), id="suspect and back"),
        pytest.param("not-ready", NOT_READY_PROBLEM, 2, ("ready", ""), id="not ready and back"),
        pytest.param(
            "not-ready", NOT_READY_PROBLEM, 20, ("not-ready", NOT_READY_PROBLEM), id="heard once, silent again"
        ),
        pytest.param("not-ready", "NodeNotReady", 2, ("not-ready", "NodeNotReady"), id="the cluster's word stays"),
        pytest.param("gone", "the node is gone", 2, ("gone", "the node is gone"), id="a node that is gone"),
        pytest.param("ready", "", None, ("ready", ""), id="never had an agent"),
    ],
)
def test_silence(state: str, problem: str, silent_for: float | None, want: tuple[str, str]) -> None:
    """LEASE-5 a silent agent's node gets nothing new; heard again, it is ready again."""
    seen = None if silent_for is None else _ago(silent_for)
    node = NodeFactory(state=state, problem=problem, agent_seen_at=seen)
    notice_silent(now=NOW, listening_since=_ago(3600))
    node.refresh_from_db()
    assert (node.state, node.problem) == want


def test_holders_keep_their_devices_and_placement_sees_the_change() -> None:
    """LEASE-5 silence frees nothing: what is used stays used; the rows are stamped for the pictures."""
    node = NodeFactory(gpus=2, agent_seen_at=_ago(60))
    Device.objects.filter(node=node).update(core_used=100)
    before = set(Device.objects.filter(node=node).values_list("revision", flat=True))
    assert notice_silent(now=NOW, listening_since=_ago(3600)) == Noticed(not_ready=(node.name,))
    rows = Device.objects.filter(node=node)
    assert {(row.core_used, row.healthy, row.presence) for row in rows} == {(100, True, "present")}
    assert before.isdisjoint(row.revision for row in rows)
    assert Event.objects.filter(node=node.name, kind="node.health").count() == 1


def test_second_look_changes_nothing() -> None:
    NodeFactory(agent_seen_at=_ago(60))
    notice_silent(now=NOW, listening_since=_ago(3600))
    assert notice_silent(now=NOW, listening_since=_ago(3600)) == Noticed()


@pytest.mark.parametrize(
    ("listening_for", "want"),
    [
        pytest.param(None, "ready", id="nobody listens"),
        pytest.param(3, "ready", id="gpuplane has just started"),
        pytest.param(12, "suspect", id="it has listened for 12 s"),
        pytest.param(45, "not-ready", id="it has listened for 45 s"),
    ],
)
def test_nobody_is_silent_while_gpuplane_does_not_listen(listening_for: float | None, want: str) -> None:
    """LEASE-5 a restart of gpuplane makes no node suspect."""
    node = NodeFactory(agent_seen_at=_ago(600))
    notice_silent(now=NOW, listening_since=None if listening_for is None else _ago(listening_for))
    node.refresh_from_db()
    assert node.state == want


def test_start_of_listening_brings_nobody_back() -> None:
    node = NodeFactory(state=NodeState.NOT_READY, problem=NOT_READY_PROBLEM, agent_seen_at=_ago(600))
    assert notice_silent(now=NOW, listening_since=_ago(3)) == Noticed()
    node.refresh_from_db()
    assert node.state == NodeState.NOT_READY


def test_presence_of_many_nodes_costs_few_statements() -> None:
    nodes = [NodeFactory() for _ in range(30)]
    heard = {node.name: LastHeard(f"boot-{node.name}", 0.3) for node in nodes} | {"no-such-node": LastHeard("b", 0.1)}
    writer = Writer()
    writer.write(heard=heard, now=NOW)
    with CaptureQueriesContext(connection) as queries:
        writer.write(heard=heard, now=NOW + timedelta(seconds=5))
    assert sum(query["sql"].startswith("UPDATE") for query in queries) == 1
    rows = set(Node.objects.values_list("name", "agent_boot", "agent_seen_at"))
    assert rows == {(node.name, f"boot-{node.name}", NOW + timedelta(seconds=5)) for node in nodes}


def test_presence_has_its_age_and_never_goes_back() -> None:
    first, second = NodeFactory(), NodeFactory(agent_seen_at=_ago(1))
    agents_seen(ages={first.name: 3.7, second.name: 3.7}, boots={}, now=NOW)
    assert Node.objects.get(pk=first.pk).agent_seen_at == _ago(3)
    assert Node.objects.get(pk=second.pk).agent_seen_at == _ago(1)


def test_node_registered_after_its_agent_came_gets_its_boot() -> None:
    writer = Writer()
    heard = {"late": LastHeard("b1", 0.0)}
    writer.write(heard=heard, now=NOW)
    NodeFactory(name="late")
    for _ in range(12):
        writer.write(heard=heard, now=NOW)
    assert Node.objects.get(name="late").agent_boot == "b1"


@pytest.mark.parametrize(
    ("ears", "want_since", "want_drop"),
    [
        pytest.param({}, None, [], id="nobody"),
        pytest.param({b"a": (60, 1), b"b": (20, 0)}, 60, [], id="two that live: the older"),
        pytest.param({b"a": (500, LISTENER_SECONDS + 1)}, None, [], id="the only one has died"),
        pytest.param({b"a": (500, 8), b"b": (300, 0)}, 8, [], id="since the death of another"),
        pytest.param({b"a": (500, 8), b"b": (2, 0)}, 2, [], id="since the start after a death"),
        pytest.param({b"a": (500, DEAD_LISTENER_SECONDS + 1), b"b": (300, 0)}, 300, [b"a"], id="a death long ago"),
    ],
)
def test_silence_counts_from_when_a_process_listened(
    ears: dict[bytes, tuple[float, float]], want_since: float | None, want_drop: list[bytes]
) -> None:
    """LEASE-5 agents get a moment to find another process before anybody calls them silent."""
    now = NOW.timestamp()
    marks = {name: listener_mark(started=now - started, last=now - last) for name, (started, last) in ears.items()}
    want = None if want_since is None else _ago(want_since)
    assert listening_since_of(marks, epoch=now) == (want, want_drop)


def test_mark_that_cannot_be_read_is_dropped() -> None:
    assert listening_since_of({b"broken": b"\xc1"}, epoch=0.0) == (None, [b"broken"])
