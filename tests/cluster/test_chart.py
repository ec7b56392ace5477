"""The Helm chart, judged by helm and by a real API server: what it renders is accepted, grants what is needed, and
starts a scheduler.
"""

import base64
import json
import ssl
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.chart import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    RELEASE,
    ChartRefused,
    example,
    helm,
    of_kinds,
    render,
    scheduler_configuration,
    scheduler_gates,
)
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.recorder import Json, applied, bare_server, followed, rights


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlane]:
    """An API server for this module."""
    with bare_server() as made:
        yield made


# What helm says


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_lint_is_clean(path: Path) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(path), "--kube-version", "1.36.3")


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param({"database": {}}, "/database", id="no database"),
        pytest.param({"redis": {"url": ""}}, "/redis", id="no Redis"),
        pytest.param({"database": {"url": "sqlite:///here"}}, "/database/url", id="SQLite"),
        pytest.param({"webhook": {}}, "'webhook' not allowed", id="misspelt value"),
        pytest.param({"settings": {"GPUPLANE_PORT": 1}}, "GPUPLANE_PORT", id="setting that the chart sets"),
        pytest.param({"settings": {"GPUPLANE_ISOLATION": "mps"}}, "GPUPLANE_ISOLATION", id="the same, of reservations"),
        pytest.param({"reservation": {"namespace": NAMESPACE}}, "reservation.namespace", id="the release's namespace"),
        pytest.param({"reservation": {"namespace": "a.b"}}, "/reservation/namespace", id="no name of a namespace"),
        pytest.param({"reservation": {"isolation": "cuda"}}, "/reservation/isolation", id="unknown isolation"),
        pytest.param({"reservation": {"seconds": 0}}, "/reservation/seconds", id="no time to name a GPU"),
        pytest.param({"reservation": {"spareGroups": 65}}, "/reservation/spareGroups", id="too many spare groups"),
        pytest.param({"scheduler": {"leaseName": "gpu-n1-0"}}, "/scheduler/leaseName", id="lease like a device's"),
        pytest.param({"ingress": {"enabled": True}}, "/ingress/hosts", id="ingress without hosts"),
        pytest.param({"certificates": {"existingSecret": "own"}}, "certificates.caBundle", id="CA left out"),
        pytest.param({"scheduler": {"extender": {"tls": {"enabled": True}}}}, "caFile", id="HTTPS without a CA"),
        pytest.param({"serviceAccount": {"create": False}}, "serviceAccount.name", id="whose account"),
        pytest.param(
            {"scheduler": {"podInitialBackoffSeconds": 20}}, "podMaxBackoffSeconds", id="back-off upside down"
        ),
    ],
)
def test_values_that_cannot_work_are_refused(values: Json, want: str) -> None:
    with pytest.raises(ChartRefused, match=want.replace("/", "[/.]")):
        render(values)


# What the API server says


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_object_is_accepted_by_an_api_server(server: ControlPlane, path: Path) -> None:
    others = ("cert-manager.io/", "monitoring.coreos.com/")  # kinds that their operators define
    rendered = [one for one in render(example(path)) if not one["apiVersion"].startswith(others)]
    for one in of_kinds(rendered, "Namespace"):  # a dry run makes none for the objects in it
        server.namespace(one["metadata"]["name"])
    told = server.api.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", given="\n---\n".join(map(json.dumps, rendered))
    )
    assert told.count("(server dry run)") == len(rendered)


def test_install_and_upgrade_keep_what_was_made_once(server: ControlPlane) -> None:
    """Secrets stay over an upgrade, the webhooks trust the CA of the Secret, and new names make a new certificate."""
    plane = [f"--kubeconfig={server.admin_kubeconfig}", f"--namespace={NAMESPACE}"]
    chart = [RELEASE, str(CHART), "--values", str(CHART / "ci" / "default-values.yaml")]
    chart += ["--set", "reservation.createNamespace=false"]  # it is there

    def state() -> tuple[Json, set[str]]:
        secrets = {
            one["metadata"]["name"]: one["data"]
            for one in server.api.items(f"/api/v1/namespaces/{NAMESPACE}/secrets")
            if not one["type"].startswith("helm.sh/")
        }
        bundles = {
            hook["clientConfig"]["caBundle"]
            for kind in ("mutating", "validating")
            for one in server.api.items(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations")
            for hook in one["webhooks"]
        }
        return secrets, bundles

    helm("install", *chart, *plane)
    try:
        installed, bundles = state()
        assert set(installed) == {f"{RELEASE}-{name}" for name in ("admin", "connections", "secret-key", "tls")}
        assert bundles == {installed[f"{RELEASE}-tls"]["ca.crt"]}
        check_certificate(installed[f"{RELEASE}-tls"], f"{RELEASE}.{NAMESPACE}.svc")
        assert len(base64.b64decode(installed[f"{RELEASE}-admin"]["password"])) == 24

        helm("upgrade", *chart, *plane, "--set", "logLevel=debug")
        assert state() == (installed, bundles)

        helm("upgrade", *chart, *plane, "--set", "certificates.extraNames={gpus.example.org}")
        upgraded, bundles = state()
        assert bundles == {upgraded[f"{RELEASE}-tls"]["ca.crt"]}
        check_certificate(upgraded[f"{RELEASE}-tls"], "gpus.example.org")
        assert {name: upgraded[name] for name in upgraded if name != f"{RELEASE}-tls"} == {
            name: installed[name] for name in installed if name != f"{RELEASE}-tls"
        }
    finally:
        helm("uninstall", RELEASE, *plane)
    assert state() == ({}, set())
    assert server.api.find("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuclaims.gpu.scheduling")


def check_certificate(secret: Json, name: str) -> None:
    """The certificate is the CA's, is for `name`, and has its key."""
    ca, certificate = (x509.load_pem_x509_certificate(base64.b64decode(secret[part])) for part in ("ca.crt", "tls.crt"))
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert name in names.get_values_for_type(x509.DNSName)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, part) for part in ("tls.crt", "tls.key")]
        for path in paths:
            path.write_bytes(base64.b64decode(secret[path.name]))
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*map(str, paths))


def _is_followed(user: Api, header: str, uid: str) -> bool:
    """Whether the API server puts the user's requests into the flow schema of that UID."""
    return user.http.get("/api/v1/nodes?limit=1").headers[header] == uid


def test_flow_schema_catches_our_requests(server: ControlPlane) -> None:
    with applied(server.api, rights()):
        uid = server.api.get(f"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/{RELEASE}")["metadata"]["uid"]
        header = "X-Kubernetes-PF-FlowSchema-UID"
        for account in (RELEASE, f"{RELEASE}-worker", f"{RELEASE}-watch"):
            ours = server.user(NAMESPACE, account)
            try:
                followed(
                    partial(_is_followed, ours, header, uid),
                    what=f"our flow schema holds for {account}",
                )
            finally:
                ours.close()


# The scheduler


@pytest.mark.parametrize("tls", [False, True], ids=["loopback", "TLS"])
def test_scheduler_starts_with_the_configuration_under_the_rights_of_the_chart(
    server: ControlPlane, tmp_path: Path, tls: bool
) -> None:
    with applied(server.api, rights()):
        kubeconfig = server.kubeconfig("chart-scheduler", server.service_account_token(NAMESPACE, RELEASE))
        extender: Json = {"urlPrefix": "http://127.0.0.1:9/extender"}
        if tls:
            pair = server.authority.issue("gpu-scheduler")
            paths = {"caFile": server.authority.certificate, "certFile": pair.certificate, "keyFile": pair.key}
            extender = {
                "urlPrefix": "https://127.0.0.1:9/extender",
                "tls": {"enabled": True} | {name: str(path) for name, path in paths.items()},
            }
        lease = f"chart-{'tls' if tls else 'loopback'}"
        values = {"scheduler": {"kubeconfig": str(kubeconfig), "extender": extender, "leaseName": lease}}
        file = tmp_path / "scheduler.yaml"
        objects = render(values)
        file.write_text(scheduler_configuration(objects))
        scheduler = server.scheduler(file, name=lease, kubeconfig=kubeconfig, arguments=scheduler_gates(objects))
        scheduler.start()
        try:
            path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease}"
            followed(lambda: (server.api.find(path) or {"spec": {}})["spec"].get("holderIdentity"), what="it leads")
            assert "forbidden" not in scheduler.log.read_text()
        finally:
            server.forget_scheduler(scheduler)
