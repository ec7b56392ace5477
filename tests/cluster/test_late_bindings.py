"""Bindings that are applied long after their sender gave up, on a real API server: no device is given twice, and every
pod is bound.

The proxy in front of the API server holds requests; etcd and the web process are stopped with SIGSTOP.
"""

import threading
from collections.abc import Iterator

import pytest

from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.proxied import BINDING, LEASE, Between, between, proxied_stack, watching
from tests.cluster.truth import read
from tests.cluster.waiting import bound, pods_of, unschedulable

__all__ = ["between"]

EIGHT = {"nvidia.com/gpu": 8}


@pytest.fixture(scope="module", params=["postgresql"])
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane behind both proxies; on one database, since each of these tests lasts a minute by its nature."""
    with proxied_stack(plane, request.param) as stack:
        yield stack


def stand_still(seconds: float) -> None:
    """The length of the fault itself."""
    threading.Event().wait(seconds)


def test_a_proxy_holds_bindings_for_45_seconds(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-2 LEASE-3 two pods of eight GPUs wait for their Bindings while collection comes by and two others ask for
    the same GPUs.
    """
    stack.add_nodes(["held-0", "held-1"])
    gate = threading.Event()
    with watching(stack, namespace).watching() as seen:
        with between.api.rule("POST", BINDING, times=1_000, gate=gate) as rule:
            stack.add_pods([pod(f"first-{number}", namespace, resources=EIGHT) for number in range(2)])
            eventually(lambda: rule.met >= 2, seconds=30, what="both Bindings held")
            stand_still(36)
            stack.add_pods([pod(f"second-{number}", namespace, resources=EIGHT) for number in range(2)])
            stand_still(9)
            assert [one.state for one in read(stack).allocations] == ["reserved", "reserved"]
        seen.until(bound("first-0", "first-1"), seconds=60, what="the first two bound")
        seen.until(unschedulable("second-0", "second-1"), seconds=60, what="the others told that nothing is free")
        assert len({one["spec"]["nodeName"] for one in pods_of(seen).values() if one["spec"].get("nodeName")}) == 2
    settled(stack)


def test_etcd_stands_still_for_60_seconds(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-2 LEASE-3 the API server has the Bindings, and its storage answers a minute later."""
    stack.add_nodes(["frozen-0", "frozen-1"])
    gate = threading.Event()
    with watching(stack, namespace).watching() as seen:
        with between.api.rule("POST", BINDING, times=2, gate=gate) as rule:
            stack.add_pods([pod(f"first-{number}", namespace, resources=EIGHT) for number in range(2)])
            eventually(lambda: rule.met == 2, seconds=30, what="both Bindings on their way")
            stack.plane.etcd.pause()
            try:
                gate.set()
                stand_still(60)
            finally:
                stack.plane.etcd.resume()
        stack.add_pods([pod(f"second-{number}", namespace, resources=EIGHT) for number in range(2)])
        seen.until(bound("first-0", "first-1"), seconds=90, what="the first two bound")
        seen.until(unschedulable("second-0", "second-1"), seconds=60, what="the others told that nothing is free")
    settled(stack)


def test_the_web_process_stands_still_for_60_seconds(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-2 LEASE-3 stopped between reservation and Binding: collection binds the pod, and the process that goes on
    sends no Binding of its own.
    """
    stack.add_nodes(["stopped"])
    gate = threading.Event()
    with watching(stack, namespace).watching() as seen, between.api.rule("POST", BINDING, times=1_000) as sent:
        with between.api.rule("POST", LEASE, gate=gate) as rule:
            stack.add_pods([pod("first", namespace, resources=EIGHT)])
            assert rule.arrived.wait(30)
            stack.gpuplane.web.pause()
            try:
                gate.set()
                stand_still(60)
                seen.until(bound("first"), seconds=30, what="the pod bound by collection")
            finally:
                stack.gpuplane.web.resume()
        stack.add_pods([pod("second", namespace, resources=EIGHT)])
        seen.until(unschedulable("second"), seconds=90, what="the other told that nothing is free")
        assert sent.met == 1
    settled(stack)
