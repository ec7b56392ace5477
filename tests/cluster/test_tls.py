"""The extender listener over TLS: kube-scheduler shows a client certificate, and nobody else comes in."""

import ssl
from collections.abc import Iterator

import httpx
import pytest

from tests.certificates import Authority
from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack
from tests.cluster.waiting import bound, count_bound, unschedulable


@pytest.fixture(scope="module", params=["sqlite"])
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane and its scheduler with HTTPS between them."""
    made = Stack(plane, plane.folder)
    try:
        made.install(made.tls_doors)
        made.start_gpuplane(vendor=request.param, doors=made.tls_doors)
        made.start_scheduler(made.tls_doors)
        yield made
    finally:
        made.close()


def test_pods_are_scheduled_over_tls(stack: Stack, namespace: str) -> None:
    """CLAIM-4 LEASE-1 the scheduler's configuration that the chart renders for TLS works, filter to bind."""
    configuration = (stack.folder / "scheduler-tls.yaml").read_text()
    assert stack.tls_doors.extender_url in configuration
    assert stack.tls_doors.extender_url.startswith("https://")
    stack.add_nodes(["tls-1", "tls-2"])
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.api.apply(claim("two", namespace, devices={"count": 2}))
        stack.add_pods([pod(f"pair-{number}", namespace, claimed="two") for number in range(8)])
        seen.until(count_bound(8), seconds=30, what="8 pods of two GPUs bound")
        stack.add_pods([pod("ninth", namespace, claimed="two")])
        seen.until(unschedulable("ninth", saying="no "), seconds=10, what="the ninth refused by our own words")
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/pair-3", grace_seconds=0)
        seen.until(bound("ninth"), seconds=20, what="the ninth bound")


def test_without_the_right_certificate_nobody_comes_in(stack: Stack) -> None:
    """No certificate, or one of another CA: the TLS handshake fails."""
    url = f"https://127.0.0.1:{stack.tls_doors.extender}/extender/filter"
    trusted = ssl.create_default_context(cafile=str(stack.plane.authority.certificate))
    with pytest.raises(httpx.TransportError):
        httpx.post(url, json={}, verify=trusted)
    stranger = Authority(stack.plane.folder / "another-ca", "another CA").issue("gpu-scheduler")
    trusted = ssl.create_default_context(cafile=str(stack.plane.authority.certificate))
    trusted.load_cert_chain(stranger.certificate, stranger.key)
    with pytest.raises(httpx.TransportError):
        httpx.post(url, json={}, verify=trusted)
