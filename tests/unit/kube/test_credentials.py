"""How a Cluster says who it is, from a kubeconfig or within the cluster, and reads that anew when it is refused or has
ended.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config

from kube import credential_calls
from kube.client import Cluster
from kube.configured import configuration_source
from kube.errors import Denied, NotConfigured, Unreachable
from kube.resources import NAMESPACES
from tests.certificates import Authority
from tests.fakes.apiserver import ApiServer
from tests.unit.kube.conftest import CLUSTERS, namespace, version


def test_the_token_travels_in_the_header(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    with ApiServer(token="secret") as server:
        assert version(cluster_of(server.kubeconfig(tmp_path / "good"))) == "v1.36.3-fake"
        assert server.requests[-1].headers["authorization"] == "Bearer secret"
        assert server.requests[-1].headers["user-agent"] == "gpuplane"
        wrong = cluster_of(server.kubeconfig(tmp_path / "bad", token="other"))
        with pytest.raises(Denied):
            version(wrong)


def test_refused_credentials_are_read_anew(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    now = [0.0]
    with ApiServer(token="old") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k"), clock=lambda: now[0])
        version(cluster)
        server.token = "new"
        server.kubeconfig(tmp_path / "k")
        cluster.request("POST", NAMESPACES.path(), body=namespace("x"))  # 401 is surely not applied: safe for writes
        assert "x" in server.namespaces
        server.token = "newer"  # and the file is not rotated yet: no storm of reloading
        for _ in range(3):
            with pytest.raises(Denied):
                version(cluster)
        server.kubeconfig(tmp_path / "k")
        now[0] += 10
        version(cluster)


def test_a_kubeconfig_that_vanishes_is_a_refusal_not_a_crash(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    with ApiServer(token="old") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k"))
        server.token = "new"
        (tmp_path / "k").unlink()
        with pytest.raises(Denied):
            version(cluster)


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
        with Cluster(configuration_source(None)) as cluster:
            version(cluster)
            server.token = "second"
            token.write_text("second\n")
            version(cluster)


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
        version(cluster)
        server.token = "second"
        speaks("second", "2999-01-01T00:00:00Z")
        version(cluster)
        assert [seen.headers["authorization"] for seen in server.requests] == ["Bearer first", "Bearer second"]


def test_a_plugin_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, cluster_of: CLUSTERS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of every thread fail by the plugin's deadline, at once after it, and go on when it answers."""
    plugin, hangs, gate = tmp_path / "plugin", tmp_path / "hangs", tmp_path / "gate"
    os.mkfifo(gate)
    status = {"token": "secret", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    plugin.write_text(f"#!/bin/sh\nif [ -e {hangs} ]; then read -r _ < {gate}; fi\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o755)
    config = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    monkeypatch.setattr(credential_calls, "SECONDS", 0.5)
    with ApiServer(token="secret") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k", token="", user={"exec": config}))
        version(cluster)
        hangs.touch()
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(version, cluster) for _ in range(2)]
            try:
                assert [type(one.exception(timeout=20)) for one in both] == [Unreachable, Unreachable]
            finally:
                hangs.unlink()
                gate.write_text("go on\n")
        until = time.monotonic() + 20
        while not _answers(cluster):
            assert time.monotonic() < until


def _answers(cluster: Cluster) -> bool:
    try:
        version(cluster)
    except Unreachable:
        return False
    return True


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
        good.request("POST", NAMESPACES.path(), body=namespace("x"))
        assert "x" in server.namespaces
        anonymous = cluster_of(server.kubeconfig(tmp_path / "anonymous", cluster=trusted))
        with pytest.raises(Unreachable):
            version(anonymous)
        stranger = {"certificate-authority": str(theirs.certificate)}
        misled = cluster_of(server.kubeconfig(tmp_path / "misled", cluster=stranger, user=user))
        with pytest.raises(Unreachable, match="certificate verify failed"):
            misled.request("POST", NAMESPACES.path(), body=namespace("y"))
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
def test_an_unusable_kubeconfig_is_reported_at_once(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "k").write_text(text)
    with pytest.raises(NotConfigured, match="kubeconfig"):
        configuration_source(tmp_path / "k")()


def test_outside_of_any_cluster_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NotConfigured, match="in-cluster"):
        configuration_source(None)()
