from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.config import incluster_config

from kube.client import Cluster, RetryRule
from kube.errors import (
    AlreadyExists,
    ConflictInCluster,
    Denied,
    NotConfigured,
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
from tests.certificates import Authority
from tests.fakes.apiserver import ApiServer, Fault

CLUSTERS = Callable[..., Cluster]
TRAIN = PODS.path(namespace="a", name="train")


def _namespace(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


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
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"))
    assert ("x" in server.namespaces) == (drop == "after")


def test_a_create_that_was_applied_and_answered_with_500_is_unknown(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", status=500, drop="after"))
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"))
    assert "x" in server.namespaces


def test_a_create_that_surely_failed_is_repeated(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    server.faults.append(Fault("POST", "namespaces", status=429, headers={"Retry-After": "1"}))
    cluster.request("POST", NAMESPACES.path(), body=_namespace("x"))
    assert "x" in server.namespaces
    assert pauses == [pytest.approx(1.05)]


def test_an_idempotent_create_whose_answer_was_lost_meets_itself(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", drop="after"))
    with pytest.raises(AlreadyExists):
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"), idempotent=True)


def test_unknown_stays_unknown_when_later_attempts_do_not_get_through(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", drop="after"))
    server.faults.append(Fault("POST", "namespaces", status=429, times=99))
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"), idempotent=True)
    assert "x" in server.namespaces


def test_unknown_stays_unknown_when_the_next_attempt_is_denied(server: ApiServer, cluster: Cluster) -> None:
    server.faults.append(Fault("POST", "namespaces", drop="after"))
    server.faults.append(Fault("POST", "namespaces", status=403))
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"), idempotent=True)


def test_a_long_retry_after_is_the_callers_business(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    server.faults.append(Fault("GET", "train", status=429, headers={"Retry-After": "30"}))
    with pytest.raises(Throttled) as caught:
        cluster.get(TRAIN, Pod)
    assert (caught.value.retry_after, pauses) == (30.0, [])


def test_a_server_that_is_down_is_unreachable_for_writes_too(server: ApiServer, cluster: Cluster) -> None:
    cluster.version()
    server.stop()
    with pytest.raises(Unreachable):
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"))
    assert not cluster.alive()
    server.start()
    cluster.request("POST", NAMESPACES.path(), body=_namespace("x"))
    assert cluster.alive()


def test_silence_ends_in_a_typed_error(server: ApiServer, cluster: Cluster) -> None:
    held = threading.Event()
    server.faults.append(Fault("GET|POST", "api", stall=held, times=2))
    with pytest.raises(Unreachable):
        cluster.request("GET", TRAIN, timeout=0.05, retry=False)
    with pytest.raises(OutcomeUnknown):
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"), timeout=0.05)
    held.set()


def test_closing_ends_the_waiting(server: ApiServer, tmp_path: Path) -> None:
    cluster = Cluster.from_settings(server.kubeconfig(tmp_path / "k"))
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


def test_a_list_is_one_snapshot_over_many_pages(server: ApiServer, cluster: Cluster) -> None:
    for number in range(7):
        server.add_pod(f"p{number}", namespace="a")
    listing = cluster.list(PODS.path(), Pod, page_size=3)
    assert [pod.metadata.name for pod in listing.items] == [f"p{number}" for number in range(7)]
    assert listing.resource_version == str(server.store.version)
    assert [seen.query["limit"] for seen in server.requests] == ["3", "3", "3"]


def test_a_list_whose_snapshot_expires_is_asked_for_again_in_one_piece(server: ApiServer, cluster: Cluster) -> None:
    for number in range(7):
        server.add_pod(f"p{number}", namespace="a")
    server.faults.append(Fault("GET", "continue=", status=410, reason="Expired"))
    listing = cluster.list(PODS.path(), Pod, page_size=3)
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


# credentials


def test_the_token_travels_in_the_header(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    with ApiServer(token="secret") as server:
        assert cluster_of(server.kubeconfig(tmp_path / "good")).version() == "v1.36.3-fake"
        assert server.requests[-1].headers["authorization"] == "Bearer secret"
        assert server.requests[-1].headers["user-agent"] == "gpuplane"
        wrong = cluster_of(server.kubeconfig(tmp_path / "bad", token="other"))
        with pytest.raises(Denied):
            wrong.version()
        assert not wrong.alive()


def test_refused_credentials_are_read_anew(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    now = [0.0]
    with ApiServer(token="old") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k"), clock=lambda: now[0])
        cluster.version()
        server.token = "new"
        server.kubeconfig(tmp_path / "k")
        cluster.request("POST", NAMESPACES.path(), body=_namespace("x"))  # 401 is surely not applied: safe for writes
        assert "x" in server.namespaces
        server.token = "newer"  # and the file is not rotated yet: no storm of reloading
        for _ in range(3):
            with pytest.raises(Denied):
                cluster.version()
        server.kubeconfig(tmp_path / "k")
        now[0] += 10
        cluster.version()


def test_a_kubeconfig_that_vanishes_is_a_refusal_not_a_crash(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    with ApiServer(token="old") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k"))
        server.token = "new"
        (tmp_path / "k").unlink()
        with pytest.raises(Denied):
            cluster.version()


def test_a_token_file_is_read_again_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mounted ServiceAccount token is replaced by the kubelet every hour."""
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first\n")
    ca.write_text("unused over http")
    with ApiServer(token="first") as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
        monkeypatch.setattr(incluster_config, "_join_host_port", lambda host, port: f"{host}:{port}")
        loader = incluster_config.InClusterConfigLoader
        monkeypatch.setattr(loader, "_load_config", _plain_http(loader._load_config))
        with Cluster.from_settings(None) as cluster:
            cluster.version()
            server.token = "second"
            token.write_text("second\n")
            cluster.version()


def _plain_http(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def load(self: Any) -> None:
        original(self)
        self.host = self.host.replace("https", "http")

    return load


def test_an_exec_plugin_is_asked_again_when_its_token_ends(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    """As cloud providers' kubeconfigs do; a token that has expired is not even tried."""
    plugin, answer = tmp_path / "plugin", tmp_path / "answer"
    plugin.write_text(f"#!/bin/sh\ncat {answer}\n")
    plugin.chmod(0o755)

    def speaks(token: str, until: str) -> None:
        status = {"token": token, "expirationTimestamp": until}
        told = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        answer.write_text(json.dumps(told))

    config = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    with ApiServer(token="first") as server:
        speaks("first", "2020-01-01T00:00:00Z")
        cluster = cluster_of(server.kubeconfig(tmp_path / "k", token="", user={"exec": config}))
        cluster.version()
        server.token = "second"
        speaks("second", "2999-01-01T00:00:00Z")
        cluster.version()
        assert [seen.headers["authorization"] for seen in server.requests] == ["Bearer first", "Bearer second"]


def test_a_client_certificate_and_our_own_ca(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    """TLS both ways; a server that another CA signed is never spoken to, so nothing was sent."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.issue("127.0.0.1"))
    context.load_verify_locations(ours.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = ours.issue("gpuplane")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    with ApiServer(tls=context) as server:
        trusted = {"certificate-authority": str(ours.certificate)}
        good = cluster_of(server.kubeconfig(tmp_path / "good", cluster=trusted, user=user))
        good.request("POST", NAMESPACES.path(), body=_namespace("x"))
        assert "x" in server.namespaces
        anonymous = cluster_of(server.kubeconfig(tmp_path / "anonymous", cluster=trusted))
        with pytest.raises(Unreachable):
            anonymous.version()
        stranger = {"certificate-authority": str(theirs.certificate)}
        misled = cluster_of(server.kubeconfig(tmp_path / "misled", cluster=stranger, user=user))
        with pytest.raises(Unreachable, match="certificate verify failed"):
            misled.request("POST", NAMESPACES.path(), body=_namespace("y"))
        assert "y" not in server.namespaces


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no such file"),
        pytest.param("", id="empty"),
        pytest.param("{", id="not YAML"),
        pytest.param("apiVersion: v1\nclusters: []", id="no context"),
        pytest.param(
            "current-context: a\ncontexts: [{name: a, context: {cluster: b}}]\nclusters: []", id="no such cluster"
        ),
        pytest.param("just text", id="a bare word"),
    ],
)
def test_an_unusable_kubeconfig_is_told_at_once(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "k").write_text(text)
    with pytest.raises(NotConfigured, match="kubeconfig"):
        Cluster.from_settings(tmp_path / "k")


def test_outside_of_any_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NotConfigured, match="in-cluster"):
        Cluster.from_settings(None)


# connections


def test_a_proxy_is_asked(server: ApiServer, tmp_path: Path, cluster_of: CLUSTERS) -> None:
    hidden = {"server": "http://api.invalid", "proxy-url": server.url}
    assert cluster_of(server.kubeconfig(tmp_path / "k", cluster=hidden)).version() == "v1.36.3-fake"
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
