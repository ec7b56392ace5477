"""TLS on the main listener as helm renders it: clients ask by TLS, trust the chart's CA, and are handed no key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.cluster.controlplane.chart import EXAMPLES, NAMESPACE, ChartRefused, example, of_kinds, render
from tests.cluster.recorder import Json
from tests.cluster.test_chart_pods import containers, environment, pod_specs

CERT_MANAGER = {"certificates": {"certManager": {"enabled": True}}}
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
GIVEN = {"certificates": {"existingSecret": "own", "caBundle": PEM}}
ALL: Json = {"agent": {"enabled": True}, "telemetry": {"replicas": 1}}


def secrets(spec: Json) -> dict[str, list[str]]:
    """Secret volumes of a pod, each with the keys that it shows (none named: all)."""
    return {
        volume["secret"]["secretName"]: sorted(item["key"] for item in volume["secret"].get("items", []))
        for volume in spec["volumes"]
        if "secret" in volume
    }


def probes(spec: Json) -> list[Json]:
    """Of the first container."""
    first = spec["containers"][0]
    return [first[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param({}, {"configMap": {"name": "gpuplane-ca-bundle"}}, id="made by helm"),
        pytest.param(GIVEN, {"configMap": {"name": "gpuplane-ca-bundle"}}, id="given"),
        pytest.param(
            CERT_MANAGER, {"secret": {"secretName": "gpuplane-ca-holder", "defaultMode": 0o444}}, id="cert-manager"
        ),
    ],
)
def test_agents_trust_the_ca_and_have_no_key(values: Json, want: Json) -> None:
    """VIEW-6 a kubelet may read whatever a pod of its node mounts: on GPU nodes never the key of the listeners."""
    specs = pod_specs(render({**ALL, **values}))
    (ca,) = (volume for volume in specs["agent"]["volumes"] if volume["name"] == "ca")
    (kind,) = want
    assert ca == {"name": "ca", kind: {**want[kind], "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    told = environment(specs["agent"]["containers"][0])
    assert told["GPUPLANE_CA_FILE"] == "/etc/gpuplane/ca/ca.crt"
    assert told["GPUPLANE_URL"].startswith("https://")
    key = values.get("certificates", {}).get("existingSecret", "gpuplane-tls")
    assert {name for name, spec in specs.items() if key in secrets(spec)} == {"web", "telemetry"}


def test_the_ca_of_the_bundle_is_that_of_the_certificate() -> None:
    objects = render(ALL)
    (bundle,) = (one for one in of_kinds(objects, "ConfigMap") if one["metadata"]["name"] == "gpuplane-ca-bundle")
    (pair,) = (one for one in of_kinds(objects, "Secret") if one["metadata"]["name"] == "gpuplane-tls")
    assert bundle["data"]["ca.crt"].strip() == base64.b64decode(pair["data"]["ca.crt"]).decode().strip()
    names = pair["metadata"]["annotations"]["gpu.scheduling/certificate-for"].split(",")
    asked = {f"{name}.{NAMESPACE}.svc" for name in ("gpuplane", "gpuplane-telemetry")}
    assert asked | {"localhost"} <= set(names)
    (given,) = (one for one in of_kinds(render(GIVEN), "ConfigMap") if one["metadata"]["name"] == "gpuplane-ca-bundle")
    assert given["data"]["ca.crt"].strip() == PEM


def test_cert_manager_makes_a_certificate_that_holds_the_ca_and_opens_nothing() -> None:
    made = {one["metadata"]["name"]: one["spec"] for one in of_kinds(render(CERT_MANAGER), "Certificate")}
    assert made["gpuplane-ca-holder"]["dnsNames"] == ["holder.invalid"]
    assert made["gpuplane-ca-holder"]["issuerRef"] == made["gpuplane-tls"]["issuerRef"]
    assert not {"server auth", "client auth"} & set(made["gpuplane-ca-holder"]["usages"])
    known = {"certificates": {"certManager": {"enabled": True}, "caBundle": PEM}}
    assert "gpuplane-ca-holder" not in {one["metadata"]["name"] for one in of_kinds(render(known), "Certificate")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_client_of_the_main_listener_uses_tls(path: Path) -> None:
    """VIEW-6 no token in the clear: doors, probes, Services, agents, Ingress, Prometheus, `helm test`."""
    objects = render(example(path))
    specs = pod_specs(objects)
    for name in {"web", "telemetry"} & set(specs):
        told = environment(specs[name]["containers"][0])
        assert told["GPUPLANE_MAIN_TLS"] == "1"
        mounts = {one["mountPath"] for one in specs[name]["containers"][0]["volumeMounts"]}
        assert {str(Path(told[key]).parent) for key in ("GPUPLANE_TLS_CERT", "GPUPLANE_TLS_KEY")} <= mounts
        assert {(probe["scheme"], probe["port"]) for probe in probes(specs[name])} == {("HTTPS", "https")}
    for service in of_kinds(objects, "Service"):
        assert {one["appProtocol"] for one in service["spec"]["ports"]} == {"https"}
    for ingress in of_kinds(objects, "Ingress"):
        assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
        backends = [
            one["backend"]["service"]["port"] for rule in ingress["spec"]["rules"] for one in rule["http"]["paths"]
        ]
        assert backends == [{"name": "https"}]
    for monitor in of_kinds(objects, "ServiceMonitor"):
        assert [one["scheme"] for one in monitor["spec"]["endpoints"]] == ["https"]
    (pod,) = of_kinds(objects, "Pod")
    program = pod["spec"]["containers"][0]["command"][-1]
    assert "https://gpuplane." in program
    assert "http://" not in program
    compile(program, "helm test", "exec")
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"ca"}


def test_plain_http_where_a_mesh_encrypts() -> None:
    """web.tls=false is as it was: no certificate where none is needed, but for the webhooks."""
    objects = render({**ALL, "web": {"tls": False}, "ingress": {"enabled": True, "hosts": [{"host": "a.example"}]}})
    specs = pod_specs(objects)
    assert secrets(specs["telemetry"]) == {}
    assert secrets(specs["web"]) == {"gpuplane-tls": ["tls.crt", "tls.key"]}
    for name in ("web", "telemetry"):
        assert "GPUPLANE_MAIN_TLS" not in environment(specs[name]["containers"][0])
        assert {(probe["scheme"], probe["port"]) for probe in probes(specs[name])} == {("HTTP", "http")}
    told = environment(specs["agent"]["containers"][0])
    assert (told["GPUPLANE_URL"], "GPUPLANE_CA_FILE" in told) == (
        f"http://gpuplane-telemetry.{NAMESPACE}.svc:8000",
        False,
    )
    assert not [one for one in of_kinds(objects, "ConfigMap") if one["metadata"]["name"].endswith("-ca-bundle")]
    (ingress,) = of_kinds(objects, "Ingress")
    assert "annotations" not in ingress["metadata"]


def test_an_ingress_may_say_otherwise() -> None:
    hosts = [{"host": "a.example"}]
    own = {"nginx.ingress.kubernetes.io/backend-protocol": "GRPCS", "haproxy.org/server-ssl": "true"}
    (ingress,) = of_kinds(render({"ingress": {"enabled": True, "hosts": hosts, "annotations": own}}), "Ingress")
    assert ingress["metadata"]["annotations"] == own


def test_forwarded_headers_are_believed_from_nobody_by_default() -> None:
    """VIEW-6 a pod of any private network could else claim the address under which its sign-ins are counted."""
    hosts = [{"host": "a.example"}]

    def told(**ingress: object) -> dict[str, str]:
        return environment(pod_specs(render({"ingress": ingress}))["web"]["containers"][0])

    assert "FORWARDED_ALLOW_IPS" not in told(enabled=True, hosts=hosts)
    assert told(enabled=True, hosts=hosts, trustedProxies=["10.42.7.0/24", "fd00::9"])["FORWARDED_ALLOW_IPS"] == (
        "10.42.7.0/24,fd00::9"
    )
    for anybody in ("*", "0.0.0.0/0", "::/0", "ingress.example"):
        with pytest.raises(ChartRefused, match="trustedProxies"):
            render({"ingress": {"enabled": True, "hosts": hosts, "trustedProxies": [anybody]}})


def test_the_webhook_listener_asks_for_a_certificate_when_configured() -> None:
    spec = pod_specs(render({"webhooks": {"clientCaSecret": "apiserver-clients"}}))["web"]
    told = environment(spec["containers"][0])
    mounted = {one["mountPath"]: one["name"] for one in spec["containers"][0]["volumeMounts"]}
    assert mounted[str(Path(told["GPUPLANE_WEBHOOK_CLIENT_CA"]).parent)] == "apiserver"
    assert secrets(spec)["apiserver-clients"] == ["ca.crt"]
    for container in containers(pod_specs(render())["web"]):
        assert "GPUPLANE_WEBHOOK_CLIENT_CA" not in environment(container) if container["name"] == "web" else True
