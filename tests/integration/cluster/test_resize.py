"""Shares of running pods that are resized in place, by REST's service and by edited claims, on a stand-in cluster."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from access.actors import SYSTEM
from access.errors import Conflict
from agent.protocol import COLUMNS
from allocations import ledger
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling.resizing import write_result
from allocations.watching import Watching
from kube import pods
from kube.errors import TemporaryKubeError
from kube.keys import ALLOCATED, HAMI_ALLOCATED, KOORDINATOR_ALLOCATED
from kube.watch import Relisted
from nodes.history import ring
from nodes.live.samples import SAMPLES_KEY, SampleView
from nodes.models import Device, Node
from nodes.services import devices_health
from storage.clock import database_now
from tests.deaths import Deaths, Died
from tests.fakes.apikinds import PODS
from tests.fakes.apiserver import Fault
from tests.integration.cluster.comparing import differences
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.integration.cluster.resizing import AMOUNTS, GI, annotations_of, give, granted, half, place, told, used

TOTAL = 80 * GI
ALWAYS = 10_000


@pytest.fixture
def there(world: World) -> World:
    """One node of a single GPU."""
    world.node("n1", gpus=1)
    world.server.add_namespace("gpuplane-system")
    return world


@pytest.mark.parametrize(
    ("limits", "annotations", "amounts", "want", "key", "want_text"),
    [
        pytest.param(
            None,
            {"gpu-fraction": "0.5"},
            {"core_percent": 60, "memory_bytes": 10 * GI},
            (60, 10 * GI),
            AMOUNTS,
            '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"60","kubernetes.io/gpu-memory":"10Gi",'
            '"kubernetes.io/gpu-memory-ratio":"12"}}]}',
            id="KAI's",
        ),
        pytest.param(
            {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "33"},
            {},
            {"core_percent": 20},
            (20, TOTAL * 33 // 100),
            KOORDINATOR_ALLOCATED,
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"20","koordinator.sh/gpu-memory":"%d",'
            '"koordinator.sh/gpu-memory-ratio":"33"},"id":"%s"}]}',
            id="Koordinator's, whose ratio stays what it was",
        ),
        pytest.param(
            {"nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "10"},
            {},
            {"core_percent": 30, "memory_bytes": 3000 << 20},
            (30, 3000 << 20),
            HAMI_ALLOCATED,
            "%s,NVIDIA,3000,30:;",
            id="HAMi's",
        ),
        pytest.param(
            None,
            {"gpu.scheduling/claim": "share"},
            {"memory_bytes": 2 * GI},
            (30, 2 * GI),
            AMOUNTS,
            '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"30","kubernetes.io/gpu-memory":"2Gi",'
            '"kubernetes.io/gpu-memory-ratio":"2"}}]}',
            id="a claim's",
        ),
    ],
)
def test_every_result_follows(
    there: World,
    limits: dict[str, str] | None,
    annotations: dict[str, str],
    amounts: dict[str, int],
    want: tuple[int, int],
    key: str,
    want_text: str,
) -> None:
    """SHARE-6b ledger, the dialect's annotations and one audit event; nothing else changes."""
    there.claim("share", count=1, core=30, memory="8Gi")
    allocation = place(there, "p", limits, **annotations)
    before = annotations_of(there, "p")
    assert give(there, allocation, **amounts)
    assert granted("p") == used() == [want]
    uuid = Device.objects.get().uuid
    fill = {KOORDINATOR_ALLOCATED: (want[1], uuid), HAMI_ALLOCATED: (uuid,)}.get(key, ())
    after = annotations_of(there, "p")
    assert after[key] == (want_text % fill if fill else want_text)
    assert {name: after[name] for name in after if name not in (key, AMOUNTS)} == {
        name: before[name] for name in before if name not in (key, AMOUNTS)
    }
    assert len(there.told("allocation.resized")) == 1
    assert differences(there.server) == []
    assert not give(there, allocation, **amounts)  # the same again
    assert len(there.told("allocation.resized")) == 1
    there.reconcile()
    assert annotations_of(there, "p") == after


def test_isolation_follows(there: World) -> None:
    """SHARE-8 a resize writes the new values, which containers get when they are restarted."""
    containers = [
        {
            "name": "main",
            "env": [
                {
                    "name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                    "valueFrom": {
                        "fieldRef": {"fieldPath": "metadata.annotations['gpu.scheduling/isolation-threads']"}
                    },
                }
            ],
        }
    ]
    there.server.add_pod("p", namespace=NAMESPACE, annotations={"gpu-fraction": "0.5"}, spec={"containers": containers})
    assert there.bind("p", there.filter("p") or "") == ""
    assert annotations_of(there, "p")["gpu.scheduling/isolation-memory"] == "0=40960M"
    give(there, Allocation.objects.get(), core_percent=25, memory_bytes=GI)
    after = annotations_of(there, "p")
    assert after["gpu.scheduling/isolation-memory"] == "0=1024M"
    assert after["gpu.scheduling/isolation-threads"] == "25"


def whole(world: World) -> Allocation:
    return place(world, "p", {"nvidia.com/gpu": "1"})


def held(world: World) -> Allocation:
    world.server.add_pod("p", namespace=NAMESPACE, annotations={"gpu-fraction": "0.5"})
    assert world.filter("p")
    return Allocation.objects.get()


def beside_another(world: World) -> Allocation:
    half(world, "other")
    return half(world, "p")


def sick(world: World) -> Allocation:
    allocation = half(world, "p")
    health = {Device.objects.get().uuid: "Xid 79"}
    devices_health(node_name="n1", health=health, actor=SYSTEM, now=database_now())
    return allocation


def on_a_silent_node(world: World) -> Allocation:
    allocation = half(world, "p")
    Node.objects.update(problem="NotReady")
    return allocation


def kept(world: World) -> Allocation:
    allocation = half(world, "p")
    Device.objects.update(kept_for="somebody", kept_priority=5, kept_until=database_now().replace(year=2099))
    return allocation


def of_containers(world: World) -> Allocation:
    limits = {"nvidia.com/gpumem": "1000"}
    containers = [{"name": name, "resources": {"limits": limits, "requests": limits}} for name in ("a", "b")]
    world.server.add_pod("p", namespace=NAMESPACE, spec={"containers": containers})
    assert world.bind("p", world.filter("p") or "") == ""
    return Allocation.objects.get()


@pytest.mark.parametrize(
    ("made", "amounts", "want"),
    [
        pytest.param(whole, {"core_percent": 50}, "whole devices", id="whole devices"),
        pytest.param(held, {"core_percent": 60}, "only the share of a bound allocation", id="not bound yet"),
        pytest.param(of_containers, {"core_percent": 60}, "shares of their own", id="HAMi's containers"),
        pytest.param(
            beside_another, {"core_percent": 60}, "gpu 0 has 0 core and 0 free; the share needs 10 core", id="no core"
        ),
        pytest.param(beside_another, {"memory_bytes": 50 * GI}, "needs 0 core and 10Gi more", id="no memory"),
        pytest.param(sick, {"core_percent": 60}, "gives nothing more: Xid 79", id="a sick device"),
        pytest.param(on_a_silent_node, {"core_percent": 60}, "takes nothing new: NotReady", id="a silent node"),
        pytest.param(kept, {"core_percent": 60}, "kept for another pod", id="kept for a preemptor"),
    ],
)
def test_refused(there: World, made: Any, amounts: dict[str, int], want: str) -> None:
    """SHARE-6b a refusal says why, and changes nothing."""
    allocation = made(there)
    before = used(), granted("p"), dict(annotations_of(there, "p"))
    with pytest.raises(Conflict, match=want):
        give(there, allocation, **amounts)
    assert (used(), granted("p"), dict(annotations_of(there, "p"))) == before
    assert not there.told("allocation.resized")


@pytest.mark.parametrize("made", [sick, on_a_silent_node, kept])
def test_a_share_shrinks_where_nothing_new_goes(there: World, made: Any) -> None:
    """SHARE-6b only growth needs a device that may be given."""
    allocation = made(there)
    assert give(there, allocation, core_percent=10, memory_bytes=GI)
    assert used() == [(10, GI)]


def measure(used_bytes: int | None, *, age: float = 0.0) -> None:
    """What the agent measured on the node's GPU."""
    columns: dict[str, tuple[int | None, ...]] = dict.fromkeys(COLUMNS, (None,))
    at = time.time() - age
    view = SampleView(
        "n1", "boot", 1, at, at, (Device.objects.get().uuid,), **columns | {"memory_used_bytes": (used_bytes,)}
    )
    with ring.client() as connection:
        connection.hset(SAMPLES_KEY, "n1", msgspec.msgpack.encode(view))


@pytest.mark.parametrize(
    ("used_bytes", "age", "least"),
    [
        pytest.param(60 * GI, 0, 20 * GI, id="beyond what the other sharer was given"),
        pytest.param(40 * GI, 0, 0, id="all of it may be the other sharer's"),
        pytest.param(60 * GI, 60, 0, id="measured too long ago"),
        pytest.param(None, 0, 0, id="not measured"),
    ],
)
def test_never_below_what_is_measured(there: World, used_bytes: int | None, age: float, least: int) -> None:
    """SHARE-6b memory in use on the device, less what the other sharers were given, stays the share's."""
    half(there, "other")
    allocation = half(there, "p")
    measure(used_bytes, age=age)
    if least:
        with pytest.raises(Conflict, match="the share needs 20Gi at least"):
            give(there, allocation, memory_bytes=least - 1)
        assert granted("p") == [(50, 40 * GI)]
    assert give(there, allocation, memory_bytes=least or 1)
    assert granted("p") == [(50, least or 1)]


STEPS = ("the ledger", "the annotations")


@pytest.mark.parametrize("steps", range(1, len(STEPS) + 1), ids=[f"after {what}" for what in STEPS])
@pytest.mark.parametrize(
    "amounts",
    [pytest.param({"core_percent": 70}, id="up"), pytest.param({"core_percent": 10, "memory_bytes": GI}, id="down")],
)
def test_killed_between_two_steps(
    there: World, monkeypatch: pytest.MonkeyPatch, steps: int, amounts: dict[str, int]
) -> None:
    """SHARE-6b LEASE-6 whatever a dead process left, a comparison tells the pod what the ledger has; once."""
    allocation = half(there, "p")
    deaths = Deaths(monkeypatch)
    deaths.arm(steps)
    with pytest.raises(Died):
        give(there, allocation, **amounts)
    deaths.rise()
    want = granted("p")
    assert want == used() != [(50, 40 * GI)]
    assert len(there.told("allocation.resized")) == 1
    done = there.reconcile()
    assert done.corrected == (1 if steps == 1 else 0)
    assert told(there, "p") == want
    assert differences(there.server) == []
    assert there.reconcile().corrected == 0
    # taken up again by who asked
    assert not give(there, allocation, **amounts)


def test_the_api_server_is_away(there: World) -> None:
    """SHARE-6b the ledger has the new amounts, and the pod is told when the API server is back."""
    allocation = half(there, "p")
    there.server.faults.append(Fault("PATCH", r"/pods/", status=500, times=ALWAYS))
    assert give(there, allocation, core_percent=60)
    assert used() == [(60, 40 * GI)]
    assert told(there, "p") == [(50, 40 * GI)]
    there.server.faults.clear()
    there.reconcile()
    assert told(there, "p") == [(60, 40 * GI)]


def test_the_watch_writes_no_results(there: World) -> None:
    """SHARE-6b a watch that lost its place leaves results to the worker's comparison: admission takes none from it."""
    allocation = half(there, "p")
    there.server.faults.append(Fault("PATCH", r"/pods/", status=500, times=ALWAYS))
    give(there, allocation, core_percent=60)
    there.server.faults.clear()
    with ThreadPoolExecutor(1) as threads:
        Watching(threads).handle(Relisted({}, ""))
    assert told(there, "p") == [(50, 40 * GI)]
    there.reconcile()
    assert told(there, "p") == [(60, 40 * GI)]


@pytest.mark.parametrize("status", [403, 422])
def test_a_pod_that_takes_no_annotation(there: World, status: int) -> None:
    """SHARE-6b LEASE-6 The ledger has the new amounts; comparisons go on, and write the results of other pods."""
    allocation, other = half(there, "p"), half(there, "q")
    there.server.faults.append(Fault("PATCH", r"/pods/", status=500, times=ALWAYS))
    assert give(there, other, core_percent=40)
    assert give(there, allocation, core_percent=60)
    there.server.faults.clear()
    there.server.faults.append(Fault("PATCH", r"/pods/p(\?|$)", status=status, times=ALWAYS))
    done = there.reconcile()
    assert (done.problem, told(there, "p"), told(there, "q")) == ("", [(50, 40 * GI)], [(40, 40 * GI)])
    there.server.faults.clear()
    there.reconcile()
    assert told(there, "p") == [(60, 40 * GI)]


def test_an_older_writer_is_late(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHARE-6b two resizes of one share: the pod ends with the amounts of the ledger, whoever writes last."""
    allocation = half(there, "p")
    annotate = pods.annotate
    later: list[int] = [70]

    def late(*args: Any, **kwargs: Any) -> Any:
        if later:
            give(there, allocation, core_percent=later.pop())  # between this writer's reads and its write
        return annotate(*args, **kwargs)

    monkeypatch.setattr(pods, "annotate", late)
    give(there, allocation, core_percent=60)
    assert granted("p") == told(there, "p") == [(70, 40 * GI)]


def test_a_restored_ledger_has_the_new_amounts(there: World) -> None:
    """LEASE-6 a ledger made anew from the pods counts what the share was resized to."""
    give(there, half(there, "p"), core_percent=60, memory_bytes=3 * GI)
    AllocationDevice.objects.all().delete()
    Allocation.objects.all().delete()
    Device.objects.update(core_used=0, memory_used=0)
    there.server.set_pod_phase("p", "Running", namespace=NAMESPACE)
    assert there.reconcile().adopted == 1
    assert used() == [(60, 3 * GI)]


def test_a_pod_that_came_back_is_not_written(there: World) -> None:
    """SHARE-6b results go to the pod that holds the share, by UID, and only while it is bound."""
    allocation = half(there, "p")
    give(there, allocation, core_percent=60)
    there.remove("p")
    there.server.add_pod("p", namespace=NAMESPACE, annotations={"gpu-fraction": "0.5"}, node="n1")
    cluster = there.backends.cluster
    assert cluster is not None
    assert not write_result(cluster, allocation.pk)
    assert ALLOCATED not in annotations_of(there, "p")


def test_nothing_is_known_of_the_pod(there: World) -> None:
    """SHARE-6b a comparison during an outage changes nothing and raises nothing."""
    allocation = half(there, "p")
    give(there, allocation, core_percent=60)
    there.server.store.patch(PODS, NAMESPACE, "p", {"metadata": {"annotations": {AMOUNTS: "{}"}}}, content_type=MERGE)
    there.server.faults.append(Fault("GET", r"/pods", status=500, times=ALWAYS))
    cluster = there.backends.cluster
    assert cluster is not None
    with pytest.raises(TemporaryKubeError):
        write_result(cluster, allocation.pk)
    assert there.reconcile().problem
    there.server.faults.clear()
    there.reconcile()
    assert told(there, "p") == [(60, 40 * GI)]
    live = ledger.read_live(allocation.pk)
    assert live is not None
    assert live.request.resized
