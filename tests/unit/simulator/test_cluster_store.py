"""The simulated cluster's objects: versions, preconditions, Bindings, deletion, definitions, and the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.cluster.journal import Journal
from simulator.cluster.kinds import CRDS, EVENTS, LEASES, NAMESPACES, NODE_POOLS, NODES, PODS, Refusal
from simulator.cluster.store import CHANGES_KEPT, EVENTS_KEPT
from simulator.kubelets import run_kubelets
from tests.unit.simulator.clusters import ClockedStore

DEFINITION = {
    "metadata": {"name": "gpuclaims.gpu.scheduling"},
    "spec": {
        "group": "gpu.scheduling",
        "scope": "Namespaced",
        "names": {"plural": "gpuclaims", "kind": "GpuClaim"},
        "versions": [{"name": "v1", "subresources": {"status": {}}}],
    },
}


@pytest.fixture
def store() -> ClockedStore:
    return ClockedStore()


@pytest.mark.parametrize(
    ("precondition", "want"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"uid": "own"}, None, id="its UID"),
        pytest.param({"uid": "other"}, 409, id="another UID"),
        pytest.param({"resourceVersion": "own"}, None, id="its version"),
        pytest.param({"resourceVersion": "1"}, 409, id="an old version"),
    ],
)
@pytest.mark.parametrize("verb", ["update", "bind", "delete"])
def test_preconditions(store: ClockedStore, verb: str, precondition: dict[str, str], want: int | None) -> None:
    """A write with a precondition that does not hold is refused, and changes nothing."""
    pod = store.pod("p")
    given = {key: pod["metadata"][key] if value == "own" else value for key, value in precondition.items()}
    writes = {
        "update": lambda: store.update(
            PODS, "team", "p", {**pod, "metadata": {"name": "p", "labels": {"a": "b"}, **given}}
        ),
        "bind": lambda: store.bind("team", "p", {"metadata": given, "target": {"name": "n"}}),
        "delete": lambda: store.delete(
            PODS, "team", "p", uid=given.get("uid", ""), version=given.get("resourceVersion", "")
        ),
    }
    if want is None:
        writes[verb]()
        assert store.find(PODS, "team", "p") != pod
        return
    with pytest.raises(Refusal) as refused:
        writes[verb]()
    assert refused.value.code == want
    assert store.get(PODS, "team", "p") == pod


def test_a_binding_merges_its_metadata(store: ClockedStore) -> None:
    """Node, annotations and condition in one write; a second Binding is refused."""
    store.create(PODS, "team", {"metadata": {"name": "p", "annotations": {"a": "1"}}, "spec": {}})
    before = store.version
    store.bind("team", "p", {"metadata": {"annotations": {"b": "2"}}, "target": {"name": "n"}})
    pod = store.get(PODS, "team", "p")
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"]) == ("n", {"a": "1", "b": "2"})
    assert (pod["status"]["conditions"][0]["status"], store.version) == ("True", before + 1)
    with pytest.raises(Refusal, match="already assigned"):
        store.bind("team", "p", {"target": {"name": "m"}})


def test_a_bound_pod_ends_when_its_kubelet_has_ended_it(store: ClockedStore) -> None:
    """With a grace period it only gets a deletionTimestamp; without, or without a node, it goes at once."""
    store.node("n")
    store.bind_to(store.pod("bound"), "n")
    run_kubelets(store)
    assert store.get(PODS, "team", "bound")["status"]["phase"] == "Running"
    store.delete(PODS, "team", "bound", grace=None)
    assert "deletionTimestamp" in store.get(PODS, "team", "bound")["metadata"]
    run_kubelets(store)
    assert store.find(PODS, "team", "bound") is None
    store.pod("waiting")
    store.delete(PODS, "team", "waiting", grace=None)
    store.bind_to(store.pod("killed"), "n")
    store.delete(PODS, "team", "killed", grace=0)
    store.bind_to(store.pod("lost"), "n")
    store.delete(NODES, "", "n")
    run_kubelets(store)
    assert store.list(PODS) == []


def test_status_apart_from_spec(store: ClockedStore) -> None:
    """A write of one leaves the other; one that changes nothing is no write."""
    store.create(CRDS, "", DEFINITION)
    kind = store.kind_of("gpu.scheduling", "v1", "gpuclaims")
    store.create(kind, "team", {"metadata": {"name": "c"}, "spec": {"n": 1}, "status": {"x": 1}})
    store.set_status(kind, "team", "c", phase="Bound")
    store.merge(kind, "team", "c", {"spec": {"n": 2}, "status": {"phase": "no"}})
    found = store.get(kind, "team", "c")
    assert (found["spec"], found["status"], found["metadata"]["generation"]) == ({"n": 2}, {"phase": "Bound"}, 2)
    before = store.version
    store.set_status(kind, "team", "c", phase="Bound")
    assert store.version == before
    store.delete(CRDS, "", "gpuclaims.gpu.scheduling")
    with pytest.raises(Refusal, match="404"):
        store.kind_of("gpu.scheduling", "v1", "gpuclaims")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"metadata": {"name": "p"}}, 409, id="twice"),
        pytest.param({"metadata": {}}, 422, id="without a name"),
        pytest.param({"metadata": {"name": "q", "namespace": "other"}}, 400, id="another namespace than the path's"),
    ],
)
def test_what_is_not_created(store: ClockedStore, body: dict[str, Any], code: int) -> None:
    """As the API server refuses it."""
    store.pod("p")
    with pytest.raises(Refusal) as refused:
        store.create(PODS, "team", {"spec": {}, **body})
    assert refused.value.code == code
    assert refused.value.status()["code"] == code


def test_changes_since_a_version(store: ClockedStore) -> None:
    """In order and whole, or 410 where some are forgotten; a namespace is made with what needs it."""
    began = store.version
    store.pod("p")
    assert [(change.kind, change.type) for change in store.since(began)] == [(NAMESPACES, "ADDED"), (PODS, "ADDED")]
    for number in range(CHANGES_KEPT):
        store.merge(PODS, "team", "p", {"metadata": {"annotations": {"n": str(number)}}})
    with pytest.raises(Refusal) as refused:
        store.since(began)
    assert refused.value.code == 410
    assert len(store.since(store.version - 2)) == 2


def test_events_are_bounded(store: ClockedStore) -> None:
    """The oldest go."""
    for number in range(EVENTS_KEPT + 5):
        store.create(EVENTS, "team", {"metadata": {"name": f"e-{number:05}"}})
    names = [item["metadata"]["name"] for item in store.list(EVENTS)]
    assert (len(names), names[0]) == (EVENTS_KEPT, "e-00005")


def test_a_restart_keeps_the_objects(tmp_path: Path) -> None:
    """Definitions with their objects, the last state of each, and nothing that was deleted."""
    path = tmp_path / "cluster.jsonl"
    with Journal.opened(path) as store:
        store.create(CRDS, "", DEFINITION)
        kind = store.kind_of("gpu.scheduling", "v1", "gpuclaims")
        store.create(kind, "team", {"metadata": {"name": "c"}, "spec": {"n": 1}})
        store.merge(kind, "team", "c", {"spec": {"n": 2}})
        store.create(LEASES, "gpuplane-system", {"metadata": {"name": "gone"}})
        store.delete(LEASES, "gpuplane-system", "gone")
        store.create(EVENTS, "team", {"metadata": {"name": "e"}})
    with Journal.opened(path) as again:
        assert again.version > store.version
        assert again.list(again.kind_of("gpu.scheduling", "v1", "gpuclaims")) == store.list(kind)
        assert (again.list(LEASES), again.list(EVENTS)) == ([], [])
        with pytest.raises(Refusal):
            again.since(store.version)
        again.create(NODE_POOLS, "", {"metadata": {"name": "b200"}})
    with Journal.opened(path) as third:
        assert third.list(NODE_POOLS) == again.list(NODE_POOLS)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b'{"v": 12, "k": "no', id="a line that was being written"),
        pytest.param(b"\x00\x00", id="garbage"),
        pytest.param(b"", id="whole"),
    ],
)
def test_a_journal_that_breaks_off(tmp_path: Path, rest: bytes) -> None:
    """What was written before is there."""
    path = tmp_path / "cluster.jsonl"
    with Journal.opened(path) as store:
        for name in ("a", "b"):
            store.create(NODES, "", {"metadata": {"name": name}})
    with path.open("ab") as file:
        file.write(rest)
    with Journal.opened(path) as again:
        assert [item["metadata"]["name"] for item in again.list(NODES)] == ["a", "b"]


def test_the_journal_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written anew when it has grown."""
    monkeypatch.setattr("simulator.cluster.journal.LARGEST_BYTES", 10_000)
    path = tmp_path / "cluster.jsonl"
    with Journal.opened(path) as store:
        store.create(NODES, "", {"metadata": {"name": "n"}})
        for number in range(500):
            store.merge(NODES, "", "n", {"metadata": {"annotations": {"n": str(number)}}})
    assert path.stat().st_size < 12_000
    with Journal.opened(path) as again:
        assert again.get(NODES, "", "n")["metadata"]["annotations"] == {"n": "499"}
