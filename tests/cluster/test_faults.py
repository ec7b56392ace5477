"""Parts fail while pods arrive: after each failure everything is bound or refused with a reason, and nothing is leaked,
within a minute (issues' 5, 6).

Between gpuplane and the API server, and between kube-scheduler and gpuplane, stands a proxy (`faults.Faults`) that
holds requests, refuses them, or loses their answers at the very moment in question. The fixture compares everything at
the end of each test.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import LEASES, Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.proxied import BINDING, LEASE, Between, between, proxied_stack, watching
from tests.cluster.truth import read
from tests.cluster.waiting import bound, count_bound, gone, pods_of, said, unschedulable

__all__ = ["between"]

GPU = {"nvidia.com/gpu": 1}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane behind both proxies."""
    with proxied_stack(plane, request.param) as stack:
        yield stack


def burst(stack: Stack, namespace: str, count: int) -> threading.Thread:
    """So many one-GPU pods, made in a thread of their own; the API server may be away meanwhile."""

    def create() -> None:
        for number in range(count):
            body = pod(f"burst-{number}", namespace, resources=GPU)
            eventually(partial(_created, stack, body), seconds=60, what=f"burst-{number} created")

    thread = threading.Thread(target=create, name="burst")
    thread.start()
    return thread


def _created(stack: Stack, body: Json) -> bool:
    try:
        answer = stack.api.http.post(f"/api/v1/namespaces/{body['metadata']['namespace']}/pods", json=body)
    except httpx.TransportError:
        return False  # the API server is being killed by the test
    return answer.status_code in {201, 409}


# servers go away during a burst


# Python's ssl leaves a socket open whose peer resets it before the handshake: it has no remote address, unlike others
@pytest.mark.filterwarnings(r"ignore:unclosed <ssl.SSLSocket .*laddr=\([^)]*\)>:ResourceWarning")
def test_the_api_server_is_killed_and_started_again(stack: Stack, namespace: str) -> None:
    """LEASE-3 LEASE-6 kube-apiserver dies in the middle of a burst and comes back."""
    stack.add_nodes([f"killed-api-{number}" for number in range(20)])
    with watching(stack, namespace).watching() as seen:
        making = burst(stack, namespace, 160)
        seen.until(count_bound(40), seconds=30, what="the burst has begun")
        stack.plane.apiserver.kill()
        stack.plane.apiserver.start()
        making.join(90)
        seen.until(count_bound(160), seconds=60, what="all 160 pods bound")
    settled(stack)


def test_etcd_is_paused(stack: Stack, namespace: str) -> None:
    """LEASE-3 etcd stops answering for longer than a request to the API server waits, then goes on."""
    stack.add_nodes([f"paused-{number}" for number in range(20)])
    with watching(stack, namespace).watching() as seen:
        making = burst(stack, namespace, 160)
        seen.until(count_bound(40), seconds=30, what="the burst has begun")
        stack.plane.etcd.pause()
        threading.Event().wait(12)  # the length of the fault itself
        stack.plane.etcd.resume()
        making.join(90)
        seen.until(count_bound(160), seconds=60, what="all 160 pods bound")
    settled(stack)


def test_redis_goes_and_comes_back(stack: Stack, namespace: str) -> None:
    """LEASE-4 without Redis pods are bound all the same; once it is back, ends are seen again."""
    stack.add_nodes([f"redis-{number}" for number in range(10)])
    with watching(stack, namespace).watching() as seen:
        stack.gpuplane.redis.kill()
        making = burst(stack, namespace, 80)
        seen.until(count_bound(80), seconds=60, what="all 80 pods bound without Redis")
        making.join(30)
        workers = {name: getattr(stack.gpuplane, name).pid for name in ("worker", "watch", "beat")}
        stack.gpuplane.redis.start()
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
        eventually(lambda: not stack.leases(), seconds=60, what="every lease given back")
        assert all(getattr(stack.gpuplane, name).alive for name in workers), "a worker died instead of coming back"


# gpuplane's own processes die at the worst moment


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("POST", LEASE, id="before its lease is made"),
        pytest.param("POST", BINDING, id="before its Binding is made"),
    ],
)
def test_web_is_killed_during_bind(stack: Stack, namespace: str, between: Between, method: str, path: str) -> None:
    """LEASE-3 the web process dies while the request of a bind is on its way; the request arrives later all the
    same.
    """
    stack.add_nodes([f"web-{'lease' if path == LEASE else 'binding'}"])
    with watching(stack, namespace).watching() as seen:
        gate = threading.Event()
        with between.api.rule(method, path, gate=gate) as rule:
            stack.add_pods([pod("first", namespace, resources=GPU)])
            assert rule.arrived.wait(20)
            stack.gpuplane.web.kill()
            stack.gpuplane.web.start()
        seen.until(bound("first"), seconds=90, what="the pod bound in the end")
        stack.add_pods([pod(f"more-{number}", namespace, resources=GPU) for number in range(7)])
        seen.until(count_bound(8), seconds=90, what="every GPU of the node bound, none lost")
    settled(stack)


def test_the_workers_are_killed_during_collection(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-4 the processes that give devices back die while they do; those that follow finish it."""
    stack.add_nodes(["collected"])
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"ends-{number}", namespace, resources=GPU) for number in range(8)])
        seen.until(count_bound(8), seconds=20, what="8 pods bound")
        gate = threading.Event()
        with between.api.rule("DELETE", LEASE, times=8, gate=gate) as rule:
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
            assert rule.arrived.wait(20)
            for one in (stack.gpuplane.worker, stack.gpuplane.watch):
                one.kill()
            for one in (stack.gpuplane.worker, stack.gpuplane.watch):
                one.start()
        eventually(lambda: not stack.leases(), seconds=60, what="every lease given back")
        stack.add_pods([pod(f"next-{number}", namespace, resources=GPU) for number in range(8)])
        seen.until(bound(*(f"next-{number}" for number in range(8))), seconds=60, what="every GPU given out again")
    settled(stack)


def test_a_watch_that_has_expired(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-4 LEASE-6 the watch is cut off through the end of pods and a compaction: 410, relist, nothing lost."""
    stack.add_nodes(["expired"])
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"ends-{number}", namespace, resources=GPU) for number in range(8)])
        seen.until(count_bound(8), seconds=20, what="8 pods bound")
        # a bind whose answer is cut off would be undone by the worker, which is about to sleep
        eventually(
            lambda: [one.state for one in read(stack).allocations] == ["bound"] * 8,
            seconds=20,
            what="every answer of the Bindings in the ledger",
        )
        gate = threading.Event()
        # the worker sleeps, so that no comparison of everything does the watch's work
        stack.gpuplane.worker.pause()
        try:
            with between.api.rule("GET", "^/api/v1/pods$", times=1000, gate=gate) as rule:
                between.api.cut()
                assert rule.arrived.wait(20)
                stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
                seen.until(gone([f"ends-{number}" for number in range(8)]), seconds=20, what="the pods gone")
                # what a fresh API server remembers begins now, and etcd knows nothing older either
                stack.plane.apiserver.stop()
                stack.plane.compact()
                stack.plane.apiserver.start()
                assert len(stack.leases()) == 8
            eventually(lambda: not stack.leases(), seconds=40, what="every lease given back by the watch alone")
            assert "kube.watch_expired" in stack.gpuplane.watch.tail(10_000)
        finally:
            stack.gpuplane.worker.resume()
    settled(stack)


# answers go wrong


@pytest.mark.parametrize("path", [pytest.param(LEASE, id="of the lease"), pytest.param(BINDING, id="of the Binding")])
def test_an_answer_is_lost_after_the_write_was_made(stack: Stack, namespace: str, between: Between, path: str) -> None:
    """LEASE-3 the API server did it, and the answer never came: nothing is undone on a guess, nothing is done twice."""
    stack.add_nodes([f"lost-{'lease' if path == LEASE else 'binding'}"])
    with watching(stack, namespace).watching() as seen:
        with between.api.rule("POST", path, times=5, lose=True) as rule:
            stack.add_pods([pod(f"lost-{number}", namespace, resources=GPU) for number in range(8)])
            seen.until(count_bound(8), seconds=60, what="8 pods bound")
            assert rule.met == 5
        nodes = {
            one["metadata"]["uid"]: one["metadata"]["annotations"]["gpu.scheduling/allocated"]
            for one in seen.now.values()
        }
        settled(stack)
        kept = {
            one["metadata"]["uid"]: one["metadata"]["annotations"]["gpu.scheduling/allocated"]
            for one in seen.now.values()
        }
        assert nodes == kept


@pytest.mark.parametrize(
    ("path", "status", "retry_after"),
    [
        pytest.param(LEASE, 429, 1, id="429 to the lease"),
        pytest.param(BINDING, 429, 1, id="429 to the Binding"),
        pytest.param(BINDING, 409, 0, id="409 to the Binding"),
        pytest.param(BINDING, 503, 0, id="503 to the Binding"),
        pytest.param(BINDING, 500, 0, id="500 to the Binding"),
    ],
)
def test_the_api_server_refuses_for_a_while(
    stack: Stack, namespace: str, between: Between, path: str, status: int, retry_after: int
) -> None:
    """LEASE-3 answers of a busy or contradicting API server are lived through."""
    stack.add_nodes([f"refuses-{status}-{'lease' if path == LEASE else 'binding'}"])
    refusing = between.api.rule("POST", path, times=6, status=status, retry_after=retry_after)
    with watching(stack, namespace).watching() as seen, refusing as rule:
        stack.add_pods([pod(f"pod-{number}", namespace, resources=GPU) for number in range(8)])
        seen.until(count_bound(8), seconds=60, what="8 pods bound")
        assert rule.met == 6
    settled(stack)


def test_a_shared_lease_written_by_another_in_between(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-1 409 to a sharer that adds itself: read again, added again."""
    stack.add_nodes(["sharers"], gpus=1)
    with watching(stack, namespace).watching() as seen, between.api.rule("PUT", LEASE, times=3, status=409) as rule:
        quarter = {"kubernetes.io/gpu": 25}
        stack.add_pods([pod(f"part-{number}", namespace, resources=quarter) for number in range(4)])
        seen.until(count_bound(4), seconds=60, what="4 quarters bound")
        assert rule.met == 3
    settled(stack)


def test_a_lease_that_somebody_else_holds(stack: Stack, namespace: str) -> None:
    """LEASE-1 a Lease made by somebody else takes its device: another is chosen; the last pod waits until it is
    gone.
    """
    stack.add_nodes(["stranger"])
    body = {"metadata": {"name": "gpu-stranger-0"}, "spec": {"holderIdentity": "somebody-else"}}
    stack.api.create(LEASES, body)
    try:
        with watching(stack, namespace).watching() as seen:
            claims = [pod(f"pod-{number}", namespace, claimed="one") for number in range(8)]
            stack.api.apply(claim("one", namespace))
            stack.add_pods(claims)
            seen.until(count_bound(7), seconds=30, what="7 pods bound to the other devices")
            waiting = [name for name, one in pods_of(seen).items() if not one["spec"].get("nodeName")]
            seen.until(unschedulable(*waiting), seconds=60, what="the eighth pod Unschedulable")
            assert "taken" in said(pods_of(seen)[waiting[0]]) or "free" in said(pods_of(seen)[waiting[0]])
            assert stack.leases()["gpu-stranger-0"]["spec"]["holderIdentity"] == "somebody-else"
            stack.api.delete(f"{LEASES}/gpu-stranger-0")
            seen.until(count_bound(8), seconds=60, what="the eighth pod bound once the stranger's lease is gone")
    finally:
        stack.api.delete(f"{LEASES}/gpu-stranger-0")
    settled(stack)


# things change between filter and bind


def during_bind(between: Between, stack: Stack, namespace: str, body: Json, change: Callable[[], None]) -> None:
    """Make the pod, hold kube-scheduler's bind, change something, let the bind go on."""
    gate = threading.Event()
    with between.door.rule("POST", "/extender/bind", gate=gate) as rule:
        stack.add_pods([body])
        assert rule.arrived.wait(20)
        change()


def test_the_claim_is_deleted_between_filter_and_bind(stack: Stack, namespace: str, between: Between) -> None:
    """CLAIM-3 LEASE-3 a pod whose claim goes after it was placed: bound with what it was given, or held with a reason;
    never half.
    """
    stack.add_nodes(["unclaimed"])
    stack.api.apply(claim("goes", namespace))
    path = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims/goes"
    with watching(stack, namespace).watching() as seen:
        during_bind(between, stack, namespace, pod("claims", namespace, claimed="goes"), lambda: stack.api.delete(path))
        seen.until(
            lambda seen: bound("claims")(seen) or unschedulable("claims")(seen),
            seconds=30,
            what="the pod bound or refused",
        )
    settled(stack)


def test_the_pod_is_deleted_between_filter_and_bind(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-3 nothing stays behind of a pod that goes after it was placed."""
    stack.add_nodes(["deleted"], gpus=1)
    with watching(stack, namespace).watching() as seen:
        path = f"/api/v1/namespaces/{namespace}/pods/goes"
        during_bind(
            between,
            stack,
            namespace,
            pod("goes", namespace, resources=GPU),
            lambda: stack.api.delete(path, grace_seconds=0),
        )
        seen.until(gone(["goes"]), seconds=20, what="the pod gone")
        stack.add_pods([pod("next", namespace, resources=GPU)])
        seen.until(bound("next"), seconds=40, what="its GPU given to the next")
    assert list(stack.leases()) == ["gpu-deleted-0"]
    settled(stack)


def test_the_pod_is_replaced_between_filter_and_bind(stack: Stack, namespace: str, between: Between) -> None:
    """LEASE-3 LEASE-4 the bind of the old pod never touches the new one of the same name."""
    stack.add_nodes(["replaced"], gpus=1)
    body = pod("same", namespace, resources=GPU)
    with watching(stack, namespace).watching() as seen:

        def replace() -> None:
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/same", grace_seconds=0)
            stack.add_pods([body])

        during_bind(between, stack, namespace, body, replace)
        seen.until(bound("same"), seconds=60, what="the new pod bound")
        uid = pods_of(seen)["same"]["metadata"]["uid"]
    truth = settled(stack)
    assert [lease.holder for lease in truth.leases.values()] == [f"{namespace}/same/{uid}"]
