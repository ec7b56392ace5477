"""Requests of a Cluster: what is repeated and what is not, whole lists, deletes that hit no successor, connections."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.client import Cluster
from kube.configured import configuration_source
from kube.errors import (
    AlreadyExists,
    ConflictInCluster,
    NotFoundInCluster,
    OutcomeUnknown,
    ServerBusy,
    TemporaryKubeError,
    Throttled,
    Unintelligible,
    Unreachable,
)
from kube.objects import Pod
from kube.resources import NAMESPACES, PODS
from kube.retry import RetryRule
from tests.fakes.apiserver import ApiServer, Fault
from tests.unit.kube.conftest import CLUSTERS, namespace, version

TRAIN = PODS.path(namespace="a", name="train")


# what is repeated, and what is not


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"status": 503}, id="busy"),
        pytest.param({"status": 500}, id="failed inside"),
        pytest.param({"status": 429, "headers": {"Retry-After": "1"}}, id="throttled"),
        pytest.param({"drop": "before"}, id="connection lost"),
        pytest.param({"drop": "after"}, id="answer lost"),
    ],
)
def test_a_read_is_repeated_until_it_gets_through(
    server: ApiServer, cluster: Cluster, pauses: list[float], fault: dict[str, object]
) -> None:
    server.add_pod("train", namespace="a")
    server.faults.append(Fault("GET", "train", times=3, **fault))  # type: ignore[arg-type]  # a table
    assert cluster.get(TRAIN, Pod).metadata.name == "train"
    assert len(pauses) == 3
    assert all(seconds > 0 for seconds in pauses)


def test_a_read_is_given_up_in_the_end(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    server.faults.append(Fault("GET", "train", status=503, times=99))
    with pytest.raises(ServerBusy):
        cluster.get(TRAIN, Pod)
    assert pauses == [pytest.approx(0.075), pytest.approx(0.15), pytest.approx(0.3)]


def test_permanent_errors_are_not_repeated(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    with pytest.raises(NotFoundInCluster) as caught:
        cluster.get(TRAIN, Pod)
    assert (caught.value.details.kind, caught.value.details.name, pauses) == ("pods", "train", [])


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_lost_create_is_unknown_and_not_repeated(server: ApiServer, cluster: Cluster, drop: str) -> None:
    server.faults.append(Fault("POST", "namespaces", drop=drop))  # type: ignore[arg-type]  # a table
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"))
    assert ("x" in server.namespaces) == (drop == "after")


def test_a_create_that_was_applied_and_answered_with_500_is_unknown(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", status=500, drop="after"))
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"))
    assert "x" in server.namespaces


def test_a_create_that_surely_failed_is_repeated(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    server.faults.append(Fault("POST", "namespaces", status=429, headers={"Retry-After": "1"}))
    cluster.request("POST", NAMESPACES.path(), body=namespace("x"))
    assert "x" in server.namespaces
    assert pauses == [pytest.approx(1.05)]


def test_an_idempotent_create_whose_answer_was_lost_meets_itself(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", drop="after"))
    with pytest.raises(AlreadyExists):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"), idempotent=True)


def test_unknown_stays_unknown_when_later_attempts_do_not_get_through(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", drop="after"))
    server.faults.append(Fault("POST", "namespaces", status=429, times=99))
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"), idempotent=True)
    assert "x" in server.namespaces


def test_unknown_stays_unknown_when_the_next_attempt_is_denied(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", drop="after"))
    server.faults.append(Fault("POST", "namespaces", status=403))
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"), idempotent=True)


def test_a_long_retry_after_is_the_callers_business(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    server.faults.append(Fault("GET", "train", status=429, headers={"Retry-After": "30"}))
    with pytest.raises(Throttled) as caught:
        cluster.get(TRAIN, Pod)
    assert (caught.value.retry_after, pauses) == (30.0, [])


def test_a_server_that_is_down_is_unreachable_for_writes_too(server: ApiServer, cluster: Cluster) -> None:
    version(cluster)
    server.stop()
    with pytest.raises(Unreachable):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"))
    with pytest.raises(Unreachable):
        version(cluster)
    server.start()
    cluster.request("POST", NAMESPACES.path(), body=namespace("x"))
    assert version(cluster)


def test_silence_ends_in_a_typed_error(server: ApiServer, cluster: Cluster) -> None:
    held = threading.Event()
    server.faults.append(Fault("GET|POST", "api", stall=held, times=2))
    with pytest.raises(Unreachable):
        cluster.request("GET", TRAIN, timeout=0.05, retry=False)
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"), timeout=0.05)
    held.set()


def test_closing_ends_the_waiting(server: ApiServer, tmp_path: Path) -> None:
    cluster = Cluster(configuration_source(server.kubeconfig(tmp_path / "k")))
    cluster.close()
    server.faults.append(Fault("GET", "train", status=503, times=99))
    with pytest.raises(ServerBusy):
        cluster.get(TRAIN, Pod)
    assert len(server.requests) == 1


@given(
    attempt=st.integers(1, 30),
    chance=st.floats(0, 1, exclude_max=True),
    error=st.one_of(
        st.just(ServerBusy("x")),
        st.builds(lambda wait: Throttled("x", retry_after=wait), st.one_of(st.none(), st.floats(0, 1e6))),
    ),
)
def test_every_wait_is_bounded(attempt: int, chance: float, error: TemporaryKubeError) -> None:
    rule = RetryRule()
    delay = rule.delay_seconds(attempt=attempt, error=error, chance=chance)
    assert delay is None or 0 <= delay <= rule.cap_seconds + rule.base_seconds
    assert delay is None or attempt < rule.attempts


# lists


@pytest.fixture
def _pages_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kube.client.PAGE_SIZE", 3)


@pytest.mark.usefixtures("_pages_of_three")
def test_a_list_is_one_snapshot_over_many_pages(server: ApiServer, cluster: Cluster) -> None:
    for number in range(7):
        server.add_pod(f"p{number}", namespace="a")
    listing = cluster.list(PODS.path(), Pod)
    assert [pod.metadata.name for pod in listing.items] == [f"p{number}" for number in range(7)]
    assert listing.resource_version == str(server.store.version)
    assert [seen.query["limit"] for seen in server.requests] == ["3", "3", "3"]


@pytest.mark.usefixtures("_pages_of_three")
def test_a_list_whose_snapshot_expires_is_asked_for_again_in_one_piece(server: ApiServer, cluster: Cluster) -> None:
    for number in range(7):
        server.add_pod(f"p{number}", namespace="a")
    server.faults.append(Fault("GET", "continue=", status=410, reason="Expired"))
    listing = cluster.list(PODS.path(), Pod)
    assert [pod.metadata.name for pod in listing.items] == [f"p{number}" for number in range(7)]
    assert listing.resource_version == str(server.store.version)


def test_selectors_choose(server: ApiServer, cluster: Cluster) -> None:
    server.add_pod("one", labels={"team": "a"}, node="n1")
    server.add_pod("two", labels={"team": "b"})
    assert [p.metadata.name for p in cluster.list(PODS.path(), Pod, label_selector="team in (a, c)").items] == ["one"]
    assert [p.metadata.name for p in cluster.list(PODS.path(), Pod, field_selector="spec.nodeName!=n1").items] == [
        "two"
    ]


def test_a_web_page_in_place_of_an_answer_is_unintelligible(server: ApiServer, cluster: Cluster) -> None:
    with pytest.raises(Unintelligible):
        cluster.get("/version", list[int])  # an answer of another form


# deletes


def test_delete_by_uid_is_repeated_and_never_hits_a_successor(server: ApiServer, cluster: Cluster) -> None:
    first = server.add_pod("train", namespace="a")["metadata"]["uid"]
    server.faults.append(Fault("DELETE", "train", drop="after"))
    with pytest.raises(NotFoundInCluster):  # the lost attempt did it
        cluster.delete(TRAIN, uid=first)
    second = server.add_pod("train", namespace="a")["metadata"]["uid"]
    with pytest.raises(ConflictInCluster):
        cluster.delete(TRAIN, uid=first)
    assert server.pods["a", "train"]["metadata"]["uid"] == second


def test_delete_without_uid_is_not_repeated(server: ApiServer, cluster: Cluster) -> None:
    server.add_pod("train", namespace="a")
    server.faults.append(Fault("DELETE", "train", drop="before"))
    with pytest.raises(OutcomeUnknown):
        cluster.delete(TRAIN)
    assert ("a", "train") in server.pods


# connections


def test_a_proxy_is_asked(server: ApiServer, tmp_path: Path, cluster_of: CLUSTERS) -> None:
    hidden = {"server": "http://api.invalid", "proxy-url": server.url}
    assert version(cluster_of(server.kubeconfig(tmp_path / "k", cluster=hidden))) == "v1.36.3-fake"
    assert server.requests[-1].headers["host"] == "api.invalid"


def test_an_api_server_behind_a_path_keeps_the_path(server: ApiServer, tmp_path: Path, cluster_of: CLUSTERS) -> None:
    behind = cluster_of(server.kubeconfig(tmp_path / "k", cluster={"server": f"{server.url}/k8s/c-1/"}))
    with pytest.raises(NotFoundInCluster):
        behind.get(TRAIN, Pod)
    assert server.requests[-1].path == f"/k8s/c-1{TRAIN}"


def test_connections_are_kept_and_shared_by_threads(server: ApiServer, cluster: Cluster) -> None:
    server.add_pod("train", namespace="a")
    ports: set[int] = set()
    accept = server._http.get_request  # type: ignore[union-attr]  # started by the fixture

    def counted() -> tuple[socket.socket, tuple[str, int]]:
        connection, address = accept()
        ports.add(address[1])
        return connection, address

    server._http.get_request = counted  # type: ignore[union-attr, method-assign]  # counts what is accepted
    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(lambda _: cluster.get(TRAIN, Pod).metadata.name, range(200)))
    assert names == ["train"] * 200
    assert len(ports) <= 8
