from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kube.client import Cluster
from kube.keys import CAPACITY_CHANGED
from kube.requeue_notify import Announcer
from tests.fakes.apiserver import ApiServer, Fault


class Gates:
    """A gate that answers as told, then lets everybody pass."""

    def __init__(self, *answers: float) -> None:
        self.answers = list(answers)
        self.asked = 0

    def pass_seconds(self) -> float:
        self.asked += 1
        return self.answers.pop(0) if self.answers else 0.0


class HeldGate:
    """Lets nobody pass until it is opened, and notes what happened in which order."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.order: list[str] = []

    def pass_seconds(self) -> float:
        self.entered.set()
        self.open.wait(30)
        self.order.append("passed")
        return 0.0


@pytest.fixture
def gate() -> Gates:
    return Gates()


@pytest.fixture
def announcer(cluster: Cluster, gate: Gates) -> Iterator[Announcer]:
    made = Announcer(lambda: cluster, gate)
    yield made
    made.close()


def test_on_the_node_named(announcer: Announcer, server: ApiServer) -> None:
    server.add_node("n1")
    server.add_node("n2")
    announcer.ask(node="n2")
    assert announcer.settled(seconds=30)
    assert _noted(server, "n1") is None
    assert _noted(server, "n2")


def test_trailing_edge(announcer: Announcer, server: ApiServer, gate: Gates) -> None:
    """What is asked for while the gate is closed is told when it opens, once for all who asked."""
    server.add_node("n1")
    announcer.ask(node="n1")
    assert announcer.settled(seconds=30)
    first = _noted(server, "n1")
    gate.answers = [0.02, 0.02]
    for _ in range(50):
        announcer.ask(node="n1")
    assert announcer.settled(seconds=30)
    assert _noted(server, "n1") != first
    assert len([seen for seen in server.requests if seen.method == "PATCH"]) == 2


def test_a_node_that_is_gone(announcer: Announcer, server: ApiServer) -> None:
    server.add_node("other")
    announcer.ask(node="gone")
    assert announcer.settled(seconds=30)
    assert _noted(server, "other")


def test_no_node_at_all(announcer: Announcer, server: ApiServer) -> None:
    announcer.ask()
    assert announcer.settled(seconds=30)
    assert not [seen for seen in server.requests if seen.method == "PATCH"]


def test_again_after_an_outage(cluster: Cluster, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kube.requeue_notify.AGAIN_SECONDS", 0.01)
    server.add_node("n1")
    server.faults.append(Fault("PATCH", "/nodes/n1", status=500, times=10))
    announcer = Announcer(lambda: cluster, Gates())
    announcer.ask(node="n1")
    assert announcer.settled(seconds=30)
    assert _noted(server, "n1")
    announcer.close()


def test_a_thread_that_did_not_start_or_ended(
    cluster: Cluster, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call starts one: nothing would be announced any more as long as the process lives."""
    server.add_node("n1")
    gate = Gates()
    announcer = Announcer(lambda: cluster, gate)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_room)
        announcer.ask(node="n1")
    announcer.ask(node="n1")
    assert announcer.settled(seconds=30)
    first = _noted(server, "n1")
    assert first
    (thread,) = [one for one in threading.enumerate() if one is announcer._thread]
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with monkeypatch.context() as broken:
        broken.setattr(gate, "pass_seconds", lambda: 1 / 0)
        announcer.ask(node="n1")
        thread.join(30)
    announcer.ask(node="n1")
    assert announcer.settled(seconds=30)
    assert _noted(server, "n1") != first
    announcer.close()


def no_room(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_refusal_ends_it(announcer: Announcer, server: ApiServer) -> None:
    server.add_node("n1")
    server.faults.append(Fault("PATCH", "/nodes/n1", status=403, reason="Forbidden"))
    announcer.ask(node="n1")
    assert announcer.settled(seconds=30)
    assert _noted(server, "n1") is None


def test_closed_means_that_the_thread_has_ended(cluster: Cluster, server: ApiServer) -> None:
    server.add_node("n1")
    gate = HeldGate()
    announcer = Announcer(lambda: cluster, gate)
    announcer.ask(node="n1")
    assert gate.entered.wait(30)

    def close() -> None:
        announcer.close()
        gate.order.append("closed")

    closing = threading.Thread(target=close)
    closing.start()
    gate.open.set()
    closing.join(30)
    assert gate.order == ["passed", "closed"]


def _noted(server: ApiServer, name: str) -> str | None:
    value: str | None = (server.nodes[name]["metadata"].get("annotations") or {}).get(CAPACITY_CHANGED)
    return value
