"""Queues and gangs while processes die at the worst moment (CLAIM-8, QUEUE-3): after each kill everything is admitted
whole, nobody goes twice, and nothing is leaked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.proxied import BINDING, Between, between, proxied_stack, watching
from tests.cluster.test_preemption import evicted
from tests.cluster.test_queues import gang, gates, member, no_queues, queue
from tests.cluster.waiting import Seen, bound, pods_of

__all__ = ["between", "no_queues"]

UNGATE = r"/pods/ring-[0-9]+$"
RING = [f"ring-{number}" for number in range(8)]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane behind both proxies."""
    with proxied_stack(plane, request.param) as stack:
        yield stack


def restart(stack: Stack) -> None:
    """The process that decides about queues dies, and comes back."""
    stack.gpuplane.watch.kill()
    stack.gpuplane.watch.start()


def without_gates(count: int) -> Seen:
    """So many pods have lost their gate."""
    return lambda seen: sum(not gates(one) for one in seen.now.values()) == count


@pytest.mark.parametrize("passed", [0, 4], ids=["between hold and gates", "after half of the gates"])
def test_the_worker_is_killed_while_it_takes_gates_off(
    stack: Stack, namespace: str, between: Between, passed: int
) -> None:
    """CLAIM-8 the gang is held whole; the worker that follows takes the other gates off."""
    stack.add_nodes([f"gates-{passed}"], gpus=8)
    ring = f"ring-{passed}"
    gang(stack, namespace, ring, 8)
    with watching(stack, namespace).watching() as seen:
        gate = threading.Event()
        with (
            between.api.rule("PATCH", UNGATE, times=passed) as first,
            between.api.rule("PATCH", UNGATE, times=64, gate=gate) as held,
        ):
            stack.add_pods([member(name, namespace, gang=ring) for name in RING])
            assert held.arrived.wait(20)
            eventually(lambda: first.met == passed, seconds=10, what="the first gates")
            seen.until(
                lambda now: sum(not gates(one) for one in now.now.values()) == passed,
                seconds=10,
                what="their gates off",
            )
            stack.gpuplane.watch.kill()
        stack.gpuplane.watch.start()
        seen.until(bound(*RING), seconds=90, what="the whole gang bound")
    settled(stack)


def test_the_worker_is_killed_between_eviction_and_admission(stack: Stack, namespace: str) -> None:
    """QUEUE-3 the victim has been told to go, and nobody remembers: the taker gets its device, and nobody else goes."""
    stack.add_nodes(["taken"], gpus=2)
    for name in ("faults-research", "faults-product"):
        queue(stack, name, quotas=[{"deserved": 1}])
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([member(f"r{number}", namespace, queue="faults-research") for number in range(2)])
        seen.until(bound("r0", "r1"), seconds=30, what="the borrowers bound")
        stack.add_pods([member("p", namespace, queue="faults-product")])
        eventually(lambda: len(evicted(seen)) == 1, seconds=20, what="a borrower told to go")
        restart(stack)
        (victim,) = evicted(seen)
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/{victim}", grace_seconds=0)
        seen.until(bound("p"), seconds=90, what="the taker bound")
        assert evicted(seen) == {victim}
    settled(stack)


def test_the_answer_of_an_eviction_is_lost(stack: Stack, namespace: str, between: Between) -> None:
    """QUEUE-3 the API server did it, and gpuplane does not know: nobody else is evicted instead."""
    stack.add_nodes(["unsaid"], gpus=2)
    for name in ("unsaid-research", "unsaid-product"):
        queue(stack, name, quotas=[{"deserved": 1}])
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([member(f"r{number}", namespace, queue="unsaid-research") for number in range(2)])
        seen.until(bound("r0", "r1"), seconds=30, what="the borrowers bound")
        with (
            between.api.rule("POST", r"/eviction$"),  # the trial
            between.api.rule("POST", r"/eviction$", lose=True) as lost,
        ):
            stack.add_pods([member("p", namespace, queue="unsaid-product")])
            assert lost.arrived.wait(20)
        eventually(lambda: len(evicted(seen)) == 1, seconds=20, what="a borrower told to go")
        (victim,) = evicted(seen)
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/{victim}", grace_seconds=0)
        seen.until(bound("p"), seconds=60, what="the taker bound")
        assert evicted(seen) == {victim}
    settled(stack)


def test_web_is_killed_while_a_gang_binds(stack: Stack, namespace: str, between: Between) -> None:
    """CLAIM-8 half of the Bindings are on their way: those that follow finish the gang."""
    stack.add_nodes(["bindings"], gpus=8)
    gang(stack, namespace, "ring", 8)
    with watching(stack, namespace).watching() as seen:
        gate = threading.Event()
        with (
            between.api.rule("POST", BINDING, times=4),
            between.api.rule("POST", BINDING, times=64, gate=gate) as held,
        ):
            stack.add_pods([member(name, namespace, gang="ring") for name in RING])
            assert held.arrived.wait(30)
            stack.gpuplane.web.kill()
            stack.gpuplane.web.start()
        seen.until(bound(*RING), seconds=120, what="the whole gang bound")
        assert len({one["metadata"]["annotations"]["gpu.scheduling/allocated"] for one in pods_of(seen).values()}) == 8
    settled(stack)
