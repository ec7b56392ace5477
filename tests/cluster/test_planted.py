"""Errors planted in the real cluster: seen from outside, and repaired or reported by gpuplane.

gpuplane's own repairing is halted while errors are planted that it would mend too soon.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from tests.cluster.controlplane.api import ApiRefused, Observer
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.stack import LEASES, Stack, eventually
from tests.cluster.invariants import ALLOCATED, problems, settled, unrest
from tests.cluster.planting import GIB
from tests.cluster.truth import read
from tests.cluster.waiting import bound, count_bound, pods_of, unschedulable

GUARDS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
REPAIRED_SECONDS = 40.0
"""gpuplane compares itself with the cluster every 25 s."""


@contextmanager
def halted(stack: Stack) -> Iterator[sqlite3.Connection]:
    """gpuplane's worker, watch and beat stand still, none of them in the middle of a write; gives a way into the ledger
    behind its back.
    """
    idle = (stack.gpuplane.beat, stack.gpuplane.watch, stack.gpuplane.worker)
    path = stack.gpuplane.data / "gpuplane.sqlite3"

    def stand_still() -> bool:
        for one in idle:
            one.pause()
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=0.5)) as probe:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
            return True
        for one in idle:
            one.resume()
        return False

    try:
        eventually(stand_still, seconds=20, what="the processes halted outside of a transaction")
        with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as ledger:
            yield ledger
    finally:
        for one in idle:
            one.resume()


def compared(stack: Stack) -> str:
    """What `manage.py reconcile` prints: the comparison that the worker makes every 25 s, at once."""
    done = stack.gpuplane.manage("reconcile")
    assert done.returncode == 0, done.stderr
    return done.stdout


def running(stack: Stack, namespace: str, *names: str) -> dict[str, str]:
    """Pods with one GPU each, bound and settled: name → minor."""
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as watched:
        stack.add_pods([pod(name, namespace, resources={"nvidia.com/gpu": 1}) for name in names])
        watched.until(bound(*names), seconds=20, what="the pods bound")
        settled(stack)
        there = pods_of(watched)
    return {name: there[name]["metadata"]["annotations"][ALLOCATED].rpartition(":")[2] for name in names}


@contextmanager
def past_the_webhooks(stack: Stack) -> Iterator[None]:
    """The API server asks gpuplane nothing, soon after this begins."""
    kept = stack.api.items(GUARDS)
    for one in kept:
        stack.api.delete(f"{GUARDS}/{one['metadata']['name']}")
    try:
        yield
    finally:
        for one in kept:
            meta = {key: one["metadata"].get(key) or {} for key in ("labels", "annotations")}
            stack.api.create(GUARDS, {**one, "metadata": {"name": one["metadata"]["name"], **meta}})


def test_planted_leases_are_seen_and_repaired(stack: Stack, namespace: str) -> None:
    """LEASE-6 a lease deleted by hand is taken again; one of ours made by hand goes; a stranger's keeps its device out
    of use.
    """
    stack.add_nodes(["planted-leases"], gpus=4)
    minors = running(stack, namespace, "first", "second")
    gone, free, strange = minors["first"], *sorted({"0", "1", "2", "3"} - set(minors.values()))
    uid = stack.get_pod(namespace, "first")["metadata"]["uid"]
    with halted(stack):
        stack.api.delete(f"{LEASES}/gpu-planted-leases-{gone}")
        ours = {"app.kubernetes.io/managed-by": "gpuplane"}
        for minor, holder, labels in ((free, f"{namespace}/nobody/{uid[:-4]}0000", ours), (strange, "a-person", {})):
            stack.api.create(
                LEASES,
                {
                    "metadata": {"name": f"gpu-planted-leases-{minor}", "labels": labels},
                    "spec": {"holderIdentity": holder, "acquireTime": "2026-01-01T00:00:00.000000Z"},
                },
            )
        truth = read(stack)
        assert sorted(problems(truth)) == sorted(
            [
                f"lease gpu-planted-leases-{gone} is missing; {namespace}/first/{uid} holds the device",
                f"lease gpu-planted-leases-{free} is held by {namespace}/nobody/{uid[:-4]}0000, who holds no device",
            ]
        )
        assert unrest(truth) == [
            (
                f"lease gpu-planted-leases-{strange} is held by the stranger a-person, "
                f"and gpu {strange} of planted-leases counts as usable"
            )
        ]
    truth = settled(stack, seconds=REPAIRED_SECONDS)
    assert truth.leases[f"gpu-planted-leases-{gone}"].holder == f"{namespace}/first/{uid}"
    assert f"gpu-planted-leases-{free}" not in truth.leases
    assert [one.minor for one in truth.devices.values() if one.stranger] == [int(strange)]
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as watched:
        stack.add_pods([pod(name, namespace, resources={"nvidia.com/gpu": 1}) for name in ("third", "fourth")])
        watched.until(count_bound(3), seconds=20, what="the GPU that nobody holds taken")
        (waiting,) = (name for name, one in pods_of(watched).items() if not one["spec"].get("nodeName"))
        watched.until(unschedulable(waiting), seconds=20, what="the other pod waits with a reason")
        stack.api.delete(f"{LEASES}/gpu-planted-leases-{strange}")
        assert f"a stranger let go of lease gpu-planted-leases-{strange}" in compared(stack)
        watched.until(bound(waiting), seconds=15, what="it is bound once the stranger let go")


def test_a_planted_number_in_the_ledger_is_seen(stack: Stack, namespace: str) -> None:
    """LEASE-6 a device's use changed behind the ledger's back is seen from outside, and corrected by gpuplane."""
    stack.add_nodes(["planted-number"], gpus=2)
    minor = int(running(stack, namespace, "only")["only"])
    with halted(stack) as ledger:
        was = ledger.execute(
            "SELECT d.id FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id "
            "WHERE n.name = 'planted-number' AND d.minor = ?",
            [minor],
        ).fetchone()
        ledger.execute("UPDATE nodes_device SET core_used = 0, memory_used = 0 WHERE id = ?", [was[0]])
        size = 80 * GIB
        assert problems(read(stack)) == [f"gpu {minor} of planted-number says 0 core, 0 bytes; its grants 100, {size}"]
        assert (
            compared(stack)
            == f"gpu {minor} of planted-number counted 0 core and 0 bytes as used; its holders were given 100 and"
            f" {size}: corrected\n"
        )
        assert problems(read(stack)) == []


def test_a_planted_annotation_is_seen_and_reported(stack: Stack, namespace: str) -> None:
    """LEASE-6 a bound pod's annotation changed by the administrator, past the webhooks, is seen from outside and
    reported by gpuplane.
    """
    stack.add_nodes(["planted-annotation"], gpus=2)
    minor = int(running(stack, namespace, "told")["told"])
    path = f"/api/v1/namespaces/{namespace}/pods/told"
    lie = {"metadata": {"annotations": {ALLOCATED: f"planted-annotation:{1 - minor}"}}}
    with pytest.raises(ApiRefused, match="result of an allocation"):
        stack.api.patch(path, lie)
    with past_the_webhooks(stack):

        def written() -> bool:
            with suppress(ApiRefused):
                stack.api.patch(path, lie)
                return True
            return False

        eventually(written, seconds=10, what="the annotation written past the webhooks")
        wrong = f"{namespace}/told (bound) got planted-annotation:{minor}, its pod says planted-annotation:{1 - minor}"
        assert wrong in problems(read(stack))
        uid = stack.get_pod(namespace, "told")["metadata"]["uid"]
        assert f"pod {namespace}/told ({uid}) carries an allocation that cannot be read" in compared(stack)
        assert wrong in problems(read(stack))  # told, not overwritten: nobody knows which of the two is right
        stack.api.patch(path, {"metadata": {"annotations": {ALLOCATED: f"planted-annotation:{minor}"}}})
