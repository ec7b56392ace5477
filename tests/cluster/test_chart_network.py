"""Who may come to the webhook listener: by default the API server alone, at addresses that a real one tells helm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.chart import CHART, NAMESPACE, RELEASE, REQUIRED, helm, of_kinds, render
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.recorder import Json, applied, bare_server

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
PEER = {"podSelector": {"matchLabels": {"konnectivity": "agent"}}}


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlane]:
    """An API server for this module."""
    with bare_server() as made:
        yield made


def webhook_rule(objects: list[Json]) -> Json:
    """The rule for the webhook's port in the policy of the web pods."""
    (policy,) = (one for one in of_kinds(objects, "NetworkPolicy") if one["metadata"]["name"].endswith("-web"))
    (rule,) = (rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "webhook")
    found: Json = rule
    return found


def asked(server: ControlPlane, values: Json | None = None) -> tuple[list[Json], str]:
    """What helm makes of the chart when it may ask this cluster: the objects, and the notes."""
    # the server has the namespace of reservation pods already, which helm takes over from nobody
    given = json.dumps({**REQUIRED, "reservation": {"createNamespace": False}, **(values or {})})
    where = ["--namespace", NAMESPACE, f"--kubeconfig={server.admin_kubeconfig}", "--values", "-"]
    text = helm("install", RELEASE, str(CHART), "--dry-run=server", "--output", "yaml", *where, given=given)
    release = yaml.safe_load(text)
    return [one for one in yaml.safe_load_all(release["manifest"]) if one], release["info"]["notes"]


@contextmanager
def endpoints(api: Api, *addresses: str, family: str = "IPv4", name: str = "kubernetes") -> Iterator[None]:
    """What an API server writes of itself; that of the tests is told not to."""
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-{family.lower()}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": family,
        "endpoints": [{"addresses": [address]} for address in addresses],
        "ports": [{"name": "https", "port": 6443}],
    }
    with applied(api, [body]):
        yield


@contextmanager
def node(api: Api, name: str, address: str, annotations: dict[str, str], *pod_cidrs: str) -> Iterator[None]:
    """A node with this address."""
    spec: Json = {"podCIDR": pod_cidrs[0], "podCIDRs": list(pod_cidrs)} if pod_cidrs else {}
    api.create("/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations}, "spec": spec})
    try:
        status = {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]}
        api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        yield
    finally:
        api.delete(f"/api/v1/nodes/{name}")


def blocks(objects: list[Json]) -> list[str]:
    """The addresses that the rule lets in."""
    return [one["ipBlock"]["cidr"] for one in webhook_rule(objects)["from"]]


def test_only_the_api_server_comes_in_where_its_addresses_are_known(server: ControlPlane) -> None:
    """CLAIM-7 every address of the Service `kubernetes`, and nobody else; the notes say whom."""
    with (
        endpoints(server.api, "192.0.2.10", "192.0.2.11"),
        endpoints(server.api, "2001:db8::10", family="IPv6"),
        endpoints(server.api, "192.0.2.99", name="another"),
    ):
        objects, notes = asked(server)
    assert blocks(objects) == ["192.0.2.10/32", "192.0.2.11/32", "2001:db8::10/128"]
    assert "192.0.2.10, 192.0.2.11, 2001:db8::10" in notes
    assert "WARNING" not in notes


@pytest.mark.parametrize(
    ("annotations", "cidrs", "want"),
    [
        pytest.param({}, ["10.244.0.0/24"], [], id="routed"),
        pytest.param({"projectcalico.org/IPv4VXLANTunnelAddr": "10.1.7.64"}, [], ["10.1.7.64/32"], id="Calico, VXLAN"),
        pytest.param(
            {"projectcalico.org/IPv4IPIPTunnelAddr": "10.1.7.65"}, [], ["10.1.7.65/32"], id="Calico, IP in IP"
        ),
        pytest.param(
            {"flannel.alpha.coreos.com/backend-type": "vxlan"}, ["10.244.0.0/24"], ["10.244.0.0/32"], id="flannel"
        ),
    ],
)
def test_an_api_server_on_a_node_comes_by_the_overlay_too(
    server: ControlPlane, annotations: dict[str, str], cidrs: list[str], want: list[str]
) -> None:
    """CLAIM-7 a node speaks to the pods of others by its address in the overlay network; no other node."""
    with (
        endpoints(server.api, "192.0.2.10"),
        node(server.api, "control-plane", "192.0.2.10", annotations, *cidrs),
        node(server.api, "worker", "192.0.2.77", {"projectcalico.org/IPv4VXLANTunnelAddr": "10.1.9.64"}),
    ):
        objects, _ = asked(server)
    assert blocks(objects) == sorted(["192.0.2.10/32", *want])


def test_an_api_server_behind_konnectivity_comes_as_its_agents(server: ControlPlane) -> None:
    """CLAIM-7 as managed clusters have it; agents on their nodes' network cannot be told from others."""
    labels = {"k8s-app": "konnectivity-agent"}
    body: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "konnectivity-agent", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "agent", "image": "none"}]},
            },
        },
    }
    with endpoints(server.api, "192.0.2.10"), applied(server.api, [body]):
        objects, _ = asked(server)
        assert webhook_rule(objects)["from"] == [
            {"ipBlock": {"cidr": "192.0.2.10/32"}},
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchLabels": labels},
            },
        ]
        body["spec"]["template"]["spec"]["hostNetwork"] = True
        server.api.apply(body)
        objects, notes = asked(server)
    assert "from" not in webhook_rule(objects)
    assert "WARNING" in notes


def test_everybody_comes_in_where_they_are_not_known_and_the_notes_warn(server: ControlPlane) -> None:
    """CLAIM-7 rendered without a cluster, or where it does not say: without the API server no GPU pod is admitted."""
    objects, notes = asked(server)
    assert "from" not in webhook_rule(objects)
    assert "WARNING: the webhook listener is open to every pod" in notes
    assert "from" not in webhook_rule(render())


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param({"networkPolicy": {"webhookFrom": []}}, None, id="everybody, as told"),
        pytest.param({"networkPolicy": {"webhookFrom": [PEER]}}, [PEER], id="peers, as told"),
    ],
)
def test_what_the_values_say_wins(server: ControlPlane, values: Json, want: list[Json] | None) -> None:
    with endpoints(server.api, "192.0.2.10"):
        objects, notes = asked(server, values)
    assert webhook_rule(objects).get("from") == want
    assert "The webhook listener is open" not in notes
    assert webhook_rule(render(values)).get("from") == want


def test_a_certificate_makes_the_warning_needless(server: ControlPlane) -> None:
    _, notes = asked(server, {"webhooks": {"clientCaSecret": "apiserver-clients"}})
    assert "WARNING" not in notes


@pytest.mark.parametrize(
    ("web_tls", "ingress", "warnings"),
    [
        pytest.param(True, {"tls": [{"secretName": "a"}]}, ["trustedProxies is empty"], id="one address for everybody"),
        pytest.param(
            False,
            {"tls": [{"secretName": "a"}]},
            ["trustedProxies is empty", "takes such requests for http,"],
            id="TLS ends there",
        ),
        pytest.param(True, {}, ["trustedProxies is empty", "takes such requests for https,"], id="TLS begins there"),
        pytest.param(
            False, {"trustedProxies": ["10.42.7.0/24"], "tls": [{"secretName": "a"}]}, [], id="the proxy says so"
        ),
    ],
)
def test_the_notes_say_what_an_ingress_that_is_not_believed_breaks(
    server: ControlPlane, web_tls: bool, ingress: Json, warnings: list[str]
) -> None:
    """VIEW-6 nobody could sign in, by the scheme at once, or after forty failures of anybody."""
    values = {
        "web": {"tls": web_tls},
        "webhooks": {"clientCaSecret": "apiserver-clients"},
        "ingress": {"enabled": True, "hosts": [{"host": "a.example"}], **ingress},
    }
    _, notes = asked(server, values)
    told = [line for line in notes.splitlines() if line.startswith("WARNING")]
    assert len(told) == len(warnings)
    for line, words in zip(told, warnings, strict=True):
        assert words in line
