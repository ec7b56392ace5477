"""Growth that goes wrong, with the real Karpenter, and two workers, watches and beats at once: nodes come all the same,
each once, or a reason is said.

GPUPLANE_TRIGGER_SECONDS and its like are small, so that a test waits little for a time-out.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.chart import NAMESPACE
from tests.cluster.controlplane.karpenter import NODE_POOLS, Karpenter
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.program import Program
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.growing import POOL, cleared, gpus_of, inventories, karpenter, requests, triggers
from tests.cluster.proxied import watching
from tests.cluster.waiting import bound, count_bound, pods_of

__all__ = ["cleared", "karpenter"]

SECONDS = 20
WAITS = [f"GPUPLANE_{name}_SECONDS" for name in ("TRIGGER", "REGISTRATION", "INVENTORY")]
GROUP = "made-for"
"""Label of a pool's nodes, and what pods select."""


@pytest.fixture(scope="module")
def module_stack(plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane with two of each worker, that waits a few seconds for each step of a node."""
    stack = Stack(plane, plane.folder)
    try:
        stack.install()
        stack.start_gpuplane(workers=2, settings={name: str(SECONDS) for name in WAITS})
        stack.start_scheduler()
        yield stack
    finally:
        stack.close()


def shares(stack: Stack, namespace: str, group: str, count: int, core: int = 50) -> list[str]:
    """Pods with a share of a GPU each, for nodes of the group; their names."""
    path = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims"
    stack.api.create(path, claim(group, namespace, devices={"count": 1, "core": core, "memoryRatio": core}))
    names = [f"{group}-{number}" for number in range(count)]
    stack.add_pods([pod(name, namespace, claimed=group, nodeSelector={GROUP: group}) for name in names])
    return names


def watches(stack: Stack) -> list[Program]:
    """Both processes that run the loop of growth."""
    ours = stack.gpuplane
    return [ours.watch, *(one for one in ours.more if one.name.startswith("watch"))]


def reasons(stack: Stack, pool: str) -> list[str]:
    """Why triggers of the pool failed, the newest first."""
    found = [one for one in requests(stack) if one["pool"] == pool]
    return [one["reason"] for row in found for one in row["triggers"] if one["state"] == "failed"]


def named(one: Json) -> Json:
    """Its names, without the version that another writer may have moved on."""
    return {field: one["metadata"][field] for field in ("name", "namespace", "uid")}


def test_nodes_that_do_not_come(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-2 SCALE-4 five groups of pods at once, each with a pool that is better and fails: an instance type that
    never comes, a node that does not register, a pool that is deleted as its node launches, a node without an agent,
    one with fewer GPUs than its pool says. All are served by the other pool; those of the last by two nodes.
    """
    karpenter.node_class("slow", registers_after="10m")
    groups = ("never", "slow", "deleted", "mute", "fewer")
    for group in groups:
        labels = {GROUP: group}
        if group == "fewer":
            karpenter.pool(group, labels=labels)
            continue
        instance = "none-such" if group == "never" else "h100-8"
        node_class = "slow" if group in {"slow", "deleted"} else "default"
        karpenter.pool(group, instance, weight=50, labels=labels, node_class=node_class)
        karpenter.pool(f"{group}-else", "h100-4", weight=1, labels=labels)

    def gpus(node: Json) -> int:
        pool = node["metadata"]["labels"][POOL]
        return {"mute": 0, "fewer": 4}.get(pool, 4 if pool.endswith("-else") else 8)

    with inventories(stack, gpus), watching(stack, namespace).watching() as seen:
        names = [name for group in groups for name in shares(stack, namespace, group, 16 if group == "fewer" else 2)]
        eventually(
            lambda: [one for one in karpenter.claims() if one["metadata"]["labels"][POOL] == "deleted"],
            seconds=60,
            what="a NodeClaim of the pool that is to be deleted",
        )
        stack.api.delete(f"{NODE_POOLS}/deleted")
        seen.until(bound(*names), seconds=180, what="everybody bound")
        nodes = {name: pods_of(seen)[name]["spec"]["nodeName"] for name in names}
    pool_of = {one["metadata"]["name"]: one["metadata"]["labels"].get(POOL) for one in stack.api.items("/api/v1/nodes")}
    for group in ("never", "slow", "deleted", "mute"):
        assert {pool_of[nodes[f"{group}-{number}"]] for number in range(2)} == {f"{group}-else"}, group
    assert len({nodes[name] for name in names if name.startswith("fewer")}) == 2
    (never,) = reasons(stack, "never")
    assert f"no NodeClaim within {SECONDS} s: Failed to schedule pod" in never
    (slow,) = reasons(stack, "slow")
    assert f"was not registered within {SECONDS} s" in slow
    (mute,) = reasons(stack, "mute")
    assert f"is ready, but no agent told what it has within {SECONDS} s" in mute
    pools = {one["name"]: one for one in stack.gpuplane.rest.get("/api/v1/pools/?page_size=100").json()["results"]}
    assert pools["fewer"]["gpus"] == 4, "the shape is corrected by what came"


def test_trigger_pods_that_are_lost(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-4 Karpenter is away for a minute: a trigger pod is evicted, another bound to an old node: made again each
    time; then three attempts have failed, the pods say so, and are served once their pool changes.
    """
    karpenter.pool("h100", labels={GROUP: "lost"})
    (old,) = stack.add_nodes(["old"])
    eventually(lambda: karpenter.accepts("h100"), seconds=30, what="the pool Ready")
    karpenter.stop()
    names = shares(stack, namespace, "lost", 2)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def one_but(before: str) -> Callable[[], list[Json]]:
        return lambda: [one for one in triggers(stack) if one["metadata"]["uid"] != before]

    eventually(one_but(""), seconds=30, what="a trigger pod")
    (first,) = triggers(stack)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named(first)}
    stack.api.create(f"{path}/{first['metadata']['name']}/eviction", eviction)
    eventually(one_but(first["metadata"]["uid"]), seconds=30, what="made again after its eviction")
    (second,) = triggers(stack)
    target = {"apiVersion": "v1", "kind": "Node", "name": old}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": named(second), "target": target}
    stack.api.create(f"{path}/{second['metadata']['name']}/binding", binding)
    eventually(one_but(second["metadata"]["uid"]), seconds=30, what="made again after it landed on an old node")
    assert not triggers(stack)[0]["spec"].get("nodeName")

    def growth() -> str:
        answer = stack.gpuplane.rest.get(f"/api/v1/pods/{namespace}/{names[0]}/explain/").json()
        return str((answer.get("growth") or {}).get("text"))

    eventually(lambda: "3 attempts failed" in growth(), seconds=150, what="given up for now")
    assert f"no NodeClaim within {SECONDS} s: Karpenter says nothing of it" in growth()
    eventually(lambda: not triggers(stack), seconds=30, what="the last trigger pod gone")
    karpenter.start()
    with inventories(stack), watching(stack, namespace).watching() as seen:
        stack.api.patch(f"{NODE_POOLS}/h100", {"spec": {"weight": 7}})
        seen.until(bound(*names), seconds=90, what="served after all")
    assert len(karpenter.claims()) == 1


def test_killed_between_every_two_steps(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-4 both watches are killed as a trigger is wanted, created, taken up, and as its node is ready: one node."""
    karpenter.pool("h100", labels={GROUP: "killed"})
    made: set[str] = set()

    def kill() -> None:
        for one in watches(stack):
            one.kill()
        for one in watches(stack):
            one.start()

    steps: dict[str, Callable[[], object]] = {
        "wanted": lambda: [one for one in requests(stack) if one["state"] in {"wanted", "triggered"}],
        "created": lambda: triggers(stack),
        "taken up": karpenter.claims,
        "ready": lambda: [
            node for node in stack.api.items("/api/v1/nodes") if POOL in node["metadata"]["labels"] and _is_ready(node)
        ],
    }
    with watching(stack, namespace).watching() as seen:
        names = shares(stack, namespace, "killed", 4)
        for step, reached in steps.items():
            eventually(reached, seconds=60, what=step)
            made |= {one["metadata"]["name"] for one in triggers(stack)}
            kill()
        with inventories(stack):
            seen.until(bound(*names), seconds=90, what="served in the end")
    assert len(made) == 1
    assert len(karpenter.claims()) == 1
    eventually(lambda: requests(stack)[0]["state"] == "served", seconds=60, what="the request is served")


def _is_ready(node: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", []))


@pytest.fixture
def unhurried(stack: Stack) -> Iterator[None]:
    """The module's time-outs are not those of this test: thirteen NodeClaims at once take Karpenter what they take.

    Pods have nodes made at once, so that whoever is known to wait is planned for.
    """

    def restarted(seconds: int, *, after: int) -> None:
        stack.gpuplane.configure(GPUPLANE_SCALE_AFTER_SECONDS=str(after), **{name: str(seconds) for name in WAITS})
        for one in watches(stack):
            one.stop()
        for one in watches(stack):
            one.start()

    restarted(300, after=0)
    yield
    restarted(SECONDS, after=2)


@pytest.mark.timeout(1000)  # most of it is the API server's, which takes a thousand pods, and gives them up one by one
@pytest.mark.usefixtures("unhurried")
def test_a_thousand_pods_at_once(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-1 SCALE-2 SCALE-5 one request, as many triggers as nodes, each once, though two of each worker run. Then
    all pods are deleted at once, and every device comes back.
    """
    made: dict[str, tuple[str, int]] = {}
    with inventories(stack), watching(stack, namespace).watching() as seen:
        shares(stack, namespace, "many", 1000, core=10)
        seen.until(lambda seen: sum(map(_is_refused, pods_of(seen).values())) == 1000, seconds=120, what="all refused")
        summary = "/api/v1/fleet/summary/"
        eventually(
            lambda: stack.gpuplane.rest.get(summary).json()["pending_pods"] == 1000, seconds=60, what="all are known"
        )
        karpenter.pool("h100", labels={GROUP: "many"})
        started = time.monotonic()
        while not count_bound(1000)(seen):
            made |= {one["metadata"]["uid"]: (one["metadata"]["name"], gpus_of(one)) for one in triggers(stack)}
            assert len(pods_of(seen)) == 1000, why_gone(stack, karpenter, seen)
            assert time.monotonic() - started < 400, f"not all of {len(pods_of(seen))} pods are bound"
            time.sleep(0.2)
    assert sorted(gpus for _, gpus in made.values()) == [4, *[8] * 12], "ten shares a GPU; none is made a second time"
    names = {name for name, _ in made.values()}
    (row,) = [one for one in requests(stack) if names & {trigger["name"] for trigger in one["triggers"]}]
    assert {one["name"] for one in row["triggers"]} == names

    def tied() -> set[str]:
        claims = stack.gpuplane.rest.get("/api/v1/node-claims/?page_size=100").json()["results"]
        return {one["name"] for one in claims if one["trigger"] in names}

    eventually(lambda: len(tied()) >= 13, seconds=120, what="every trigger has its NodeClaim")
    assert len(tied()) == 13
    # Karpenter makes one more of its own accord where the API server stood still while the first ones came: it is in
    # answer to no trigger
    assert {one["metadata"]["name"] for one in karpenter.claims()} >= tied()
    stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
    live = "/api/v1/allocations/?live=true&page_size=1"
    eventually(lambda: not stack.gpuplane.rest.get(live).json()["results"], seconds=300, what="all devices are back")


def why_gone(stack: Stack, karpenter: Karpenter, seen: Observer) -> str:
    """What is known of pods that went though nobody deleted them: what Karpenter and the cluster say."""
    nodes = {node["metadata"]["name"]: node["spec"].get("taints", []) for node in stack.api.items("/api/v1/nodes")}
    claims = {one["metadata"]["name"]: one["metadata"].get("deletionTimestamp") for one in karpenter.claims()}
    said = [
        f"{one['reason']} {one['involvedObject']['name']}: {one['message']}"
        for one in stack.api.items("/api/v1/events")
        if one["involvedObject"]["kind"] in {"Node", "NodeClaim"}
    ]
    log = [line for line in karpenter.program.log.read_text().splitlines() if "could not schedule" not in line]
    return "\n".join([f"{len(pods_of(seen))} pods are left", str(nodes), str(claims), *said[-60:], *log[-60:]])


def _is_refused(found: Json) -> bool:
    conditions = found["status"].get("conditions", [])
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)
