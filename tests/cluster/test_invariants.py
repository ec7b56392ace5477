"""The comparison itself: of a sound picture it says nothing, of a planted error of each kind exactly the sentence that names it.

The tables are pure. The last tests plant errors in the real cluster, with gpuplane's repairing halted meanwhile, and then see that it
repairs or reports what was planted.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from tests.cluster.controlplane.api import ApiRefused, Observer
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.program import ROOT
from tests.cluster.controlplane.stack import LEASES, Stack, eventually
from tests.cluster.invariants import ALLOCATED, AMOUNTS, KOORDINATOR, VISIBLE, problems, settled, unrest
from tests.cluster.truth import AllocationRow, DeviceRow, Grant, LeaseView, PodView, Truth, read
from tests.cluster.waiting import bound, count_bound, pods_of, unschedulable

GIB = 2**30
BIG = 80 * GIB
GUARDS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
REPAIRED_SECONDS = 40.0
"""gpuplane compares itself with the cluster every 25 s."""


def told(*shares: tuple[str, int, int, str], prefix: str = "kubernetes.io") -> str:
    """The JSON of amounts: (type, minor, core, quantity of memory or nothing). All of a GPU's core and memory is the whole of it."""
    found: dict[str, list[object]] = {}
    for kind, minor, core, memory in shares:
        name = "gpu-core" if kind == "gpu" else kind
        resources = {f"{prefix}/{name}": str(core)}
        if memory:
            resources[f"{prefix}/gpu-memory"] = memory
        if (core, memory) == (100, "80Gi"):
            resources[f"{prefix}/gpu-memory-ratio"] = "100"
        found.setdefault(kind, []).append({"minor": minor, "resources": resources})
    return json.dumps(found)


def sound() -> Truth:
    """Node n: `lone` has GPUs 0 and 1 whole, `left` and `right` share GPU 2, `mixed` has part of GPU 3 and of NIC 0; GPU 4 is a stranger's.

    `lone` and `right` speak Koordinator's words, `left` and `mixed` ours. `waits` is refused with a reason, `over` has ended, `other`
    asks for nothing, `theirs` is another scheduler's.
    """
    gpus = [DeviceRow(number, "n", "gpu", number, f"G{number}", BIG, 0, 0) for number in range(5)]
    devices = {one.id: one for one in [*gpus, DeviceRow(5, "n", "rdma", 0, "R0", 0, 30, 0)]}
    devices[4] = replace(devices[4], stranger="somebody else")
    for number, core, memory in ((0, 100, BIG), (1, 100, BIG), (2, 80, 30 * GIB), (3, 20, 5 * GIB)):
        devices[number] = replace(devices[number], core_used=core, memory_used=memory)

    def grant(device: int, core: int = 100, memory: int = BIG) -> Grant:
        row = devices[device]
        return Grant(device, row.type, row.minor, row.uuid, core, memory, core == 100)

    def holder(name: str, *grants: Grant) -> AllocationRow:
        return AllocationRow(f"id-{name}", "bound", "team", name, f"u-{name}", f"team/{name}/u-{name}", "n", grants)

    def runs(name: str, allocated: str, visible: str, **annotations: str) -> PodView:
        carried = {ALLOCATED: f"n:{allocated}", VISIBLE: visible, **annotations}
        return PodView("team", name, f"u-{name}", "n", "Running", "gpu-scheduler", carried, asks=True)

    lone, left = holder("lone", grant(1), grant(0)), holder("left", grant(2, 50, 10 * GIB))
    right = holder("right", grant(2, 30, 20 * GIB))
    mixed = holder("mixed", grant(5, 30, 0), grant(3, 20, 5 * GIB))
    pods = [
        runs("lone", "0,1", "G0,G1", **{KOORDINATOR: told(("gpu", 0, 100, "80Gi"), ("gpu", 1, 100, "80Gi"))}),
        runs("left", "2", "G2", **{AMOUNTS: told(("gpu", 2, 50, "10Gi"))}),
        runs("right", "2", "G2", **{KOORDINATOR: told(("gpu", 2, 30, "20Gi"), prefix="koordinator.sh")}),
        runs("mixed", "3", "G3", **{AMOUNTS: told(("gpu", 3, 20, "5Gi"), ("rdma", 0, 30, ""))}),
        PodView("team", "waits", "u-waits", "", "Pending", "gpu-scheduler", {}, True, "False Unschedulable 0/1 nodes"),
        PodView("team", "over", "u-over", "n", "Succeeded", "gpu-scheduler", {ALLOCATED: "n:0"}, asks=True),
        PodView("team", "other", "u-other", "n", "Running", "gpu-scheduler", {}, asks=False),
        PodView("team", "theirs", "u-theirs", "", "Pending", "default-scheduler", {}, asks=True),
    ]
    leases = [
        LeaseView("gpu-n-0", "team/lone/u-lone"),
        LeaseView("gpu-n-1", "team/lone/u-lone"),
        LeaseView("gpu-n-2", "gpuplane/shares", ("team/left/u-left", "team/right/u-right")),
        LeaseView("gpu-n-3", "gpuplane/shares", ("team/mixed/u-mixed",)),
        LeaseView("rdma-n-0", "gpuplane/shares", ("team/mixed/u-mixed",)),
        LeaseView("gpu-n-4", "somebody else", ours=False),
    ]
    return Truth(
        devices=devices,
        allocations=[lone, left, right, mixed],
        pods={one.uid: one for one in pods},
        leases={one.name: one for one in leases},
        nodes={"n"},
    )


# the planted errors: each changes a sound Truth


def device(number: int, **fields: object) -> Callable[[Truth], None]:
    """Columns of a device."""

    def plant(truth: Truth) -> None:
        truth.devices[number] = replace(truth.devices[number], **fields)  # type: ignore[arg-type]  # a table's values

    return plant


def row(name: str, **fields: object) -> Callable[[Truth], None]:
    """Columns of an allocation."""

    def plant(truth: Truth) -> None:
        place = next(at for at, one in enumerate(truth.allocations) if one.pod_name == name)
        truth.allocations[place] = replace(truth.allocations[place], **fields)  # type: ignore[arg-type]  # a table's values

    return plant


def first_grant(name: str, **fields: object) -> Callable[[Truth], None]:
    """Columns of an allocation's first grant."""

    def plant(truth: Truth) -> None:
        found = next(one for one in truth.allocations if one.pod_name == name)
        changed = replace(found.grants[0], **fields)  # type: ignore[arg-type]  # a table's values
        row(name, grants=(changed, *found.grants[1:]))(truth)

    return plant


def seen(name: str, **fields: object) -> Callable[[Truth], None]:
    """What a pod looks like."""

    def plant(truth: Truth) -> None:
        truth.pods[f"u-{name}"] = replace(truth.pods[f"u-{name}"], **fields)  # type: ignore[arg-type]  # a table's values

    return plant


def says(name: str, key: str, value: str | None) -> Callable[[Truth], None]:
    """An annotation of a pod; None takes it away."""

    def plant(truth: Truth) -> None:
        carried = {**truth.pods[f"u-{name}"].annotations, key: value}
        seen(name, annotations={one: text for one, text in carried.items() if text is not None})(truth)

    return plant


def lease(name: str, *, there: bool = True, **fields: object) -> Callable[[Truth], None]:
    """A lease changed, made or taken away."""

    def plant(truth: Truth) -> None:
        before = truth.leases.pop(name, LeaseView(name, ""))
        if there:
            truth.leases[name] = replace(before, **fields)  # type: ignore[arg-type]  # a table's values

    return plant


def no_pod(name: str) -> Callable[[Truth], None]:
    """The pod is gone."""

    def plant(truth: Truth) -> None:
        del truth.pods[f"u-{name}"]

    return plant


def no_row(name: str) -> Callable[[Truth], None]:
    """The ledger lost an allocation, and gave back what it held."""

    def plant(truth: Truth) -> None:
        lost = next(one for one in truth.allocations if one.pod_name == name)
        truth.allocations.remove(lost)
        for grant in lost.grants:
            used = truth.devices[grant.device]
            device(
                grant.device,
                core_used=used.core_used - grant.core_percent,
                memory_used=used.memory_used - grant.memory_bytes,
            )(truth)

    return plant


def second_row(truth: Truth) -> None:
    """The pod `left` has a second allocation, of a free device."""
    free = Grant(4, "gpu", 4, "G4", 10, GIB, whole=False)
    truth.allocations.append(
        AllocationRow("id-2", "reserved", "team", "left", "u-left", "team/left/u-left", "n", (free,))
    )
    device(4, core_used=10, memory_used=GIB)(truth)


def orphans(truth: Truth) -> None:
    """Grants outlive their allocation."""
    truth.orphans = 2


def all_of(*plants: Callable[[Truth], None]) -> Callable[[Truth], None]:
    """Several at once."""

    def plant(truth: Truth) -> None:
        for one in plants:
            one(truth)

    return plant


def overfull(core: int, memory: int) -> Callable[[Truth], None]:
    """`left` was given so much more of GPU 2 that it overflows; pod, ledger and device agree on it."""
    return all_of(
        first_grant("left", core_percent=core, memory_bytes=memory),
        device(2, core_used=core + 30, memory_used=memory + 20 * GIB),
        says("left", AMOUNTS, told(("gpu", 2, core, str(memory)))),
    )


PLANTED = [
    pytest.param(
        device(0, core_used=0, memory_used=0),
        [f"gpu 0 of n says 0 core, 0 bytes; its grants 100, {BIG}"],
        id="device says less than its grants",
    ),
    pytest.param(
        device(4, core_used=0, memory_used=GIB),
        [f"gpu 4 of n says 0 core, {GIB} bytes; its grants 0, 0"],
        id="device used by nobody",
    ),
    pytest.param(
        row("left", grants=()),
        [
            "team/left (bound) holds no device",
            f"gpu 2 of n says 80 core, {30 * GIB} bytes; its grants 30, {20 * GIB}",
            "lease gpu-n-2 is held by team/left/u-left, who holds no device",
        ],
        id="allocation without device",
    ),
    pytest.param(
        overfull(75, 10 * GIB),
        ["gpu 2 of n is given beyond its size", "gpu 2 of n was handed out to 105 percent"],
        id="more than 100 core",
    ),
    pytest.param(
        overfull(50, 61 * GIB),
        ["gpu 2 of n is given beyond its size", f"gpu 2 of n was handed out to {81 * GIB} of {BIG} bytes"],
        id="more memory than there is",
    ),
    pytest.param(
        all_of(first_grant("left", whole=True), lease("gpu-n-2", holder="team/left/u-left", sharers=())),
        [
            "gpu 2 of n is given whole and has 2 holders",
            f"team/left (bound) got gpu 2 whole, {10 * GIB} bytes, its pod's {AMOUNTS} says gpu 2 50 core, {10 * GIB} bytes",
            "lease gpu-n-2 is held by team/left/u-left [], the device by team/left/u-left, team/right/u-right",
        ],
        id="whole, with two holders",
    ),
    pytest.param(device(0, presence="removed"), ["gpu 0 of n is held and was removed"], id="removed device held"),
    pytest.param(
        first_grant("left", uuid="G9"),
        [
            "team/left (bound) names gpu 2 of n, which is gpu 2 of n",
            "team/left (bound) got ['G9'], its pod sees G2",
        ],
        id="grant with another uuid",
    ),
    pytest.param(
        device(2, node="m"),
        [
            "team/left (bound) names gpu 2 of n, which is gpu 2 of m",
            "team/right (bound) names gpu 2 of n, which is gpu 2 of m",
        ],
        id="device of another node",
    ),
    pytest.param(orphans, ["2 grants live on in allocations that have ended"], id="grants of nobody"),
    pytest.param(second_row, ["pod u-left has 2 live allocations"], id="two allocations of a pod"),
    pytest.param(no_pod("mixed"), ["team/mixed (bound) holds devices, and its pod is gone"], id="pod gone"),
    pytest.param(
        seen("mixed", phase="Failed"),
        ["team/mixed (bound) holds devices, and its pod has failed"],
        id="pod over",
    ),
    pytest.param(
        seen("mixed", node=""),
        ["team/mixed (bound) is bound to n, its pod runs on no node"],
        id="pod not bound",
    ),
    pytest.param(
        all_of(seen("mixed", node="m"), lambda truth: truth.nodes.add("m")),
        ["team/mixed (bound) is bound to n, its pod runs on m"],
        id="pod on another node",
    ),
    pytest.param(
        all_of(no_row("mixed"), lease("gpu-n-3", there=False), lease("rdma-n-0", there=False)),
        ["team/mixed runs on n with n:3 and has no allocation"],
        id="running pod unknown to the ledger",
    ),
    pytest.param(
        seen("waits", node="n", phase="Running", scheduled=""),
        ["team/waits runs on n with no devices and has no allocation"],
        id="asking pod that runs without devices",
    ),
    pytest.param(
        row("lone", state="reserved"),
        ["team/lone runs on n with n:0,1 and has no allocation"],
        id="running pod only reserved",
    ),
    pytest.param(
        says("left", ALLOCATED, "n:4"),
        ["team/left (bound) got n:2, its pod says n:4"],
        id="other minor in the annotation",
    ),
    pytest.param(
        says("left", ALLOCATED, None), ["team/left (bound) got n:2, its pod says None"], id="annotation taken away"
    ),
    pytest.param(
        says("lone", ALLOCATED, "n:1,0"), ["team/lone (bound) got n:0,1, its pod says n:1,0"], id="minors in disorder"
    ),
    pytest.param(
        says("lone", VISIBLE, "G0"), ["team/lone (bound) got ['G0', 'G1'], its pod sees G0"], id="sees too little"
    ),
    pytest.param(
        says("left", AMOUNTS, told(("gpu", 2, 51, "10240Mi"))),
        [
            f"team/left (bound) got gpu 2 50 core, {10 * GIB} bytes, its pod's {AMOUNTS} says gpu 2 51 core, {10 * GIB} bytes"
        ],
        id="other core in our amounts",
    ),
    pytest.param(
        says("right", KOORDINATOR, told(("gpu", 2, 30, "21Gi"), prefix="koordinator.sh")),
        [
            (
                f"team/right (bound) got gpu 2 30 core, {20 * GIB} bytes, "
                f"its pod's {KOORDINATOR} says gpu 2 30 core, {21 * GIB} bytes"
            ),
        ],
        id="other memory in koordinator's amounts",
    ),
    pytest.param(
        says("mixed", AMOUNTS, told(("gpu", 3, 20, "5Gi"))),
        [
            (
                f"team/mixed (bound) got gpu 3 20 core, {5 * GIB} bytes; rdma 0 30 core, 0 bytes, "
                f"its pod's {AMOUNTS} says gpu 3 20 core, {5 * GIB} bytes"
            ),
        ],
        id="a device is missing in the amounts",
    ),
    pytest.param(
        says("left", AMOUNTS, "{"),
        [f"team/left (bound) has a pod whose {AMOUNTS} cannot be read"],
        id="amounts that are no JSON",
    ),
    pytest.param(
        says("left", AMOUNTS, '{"gpu":[{"minor":2}]}'),
        [f"team/left (bound) has a pod whose {AMOUNTS} cannot be read"],
        id="amounts without amounts",
    ),
    pytest.param(
        all_of(says("lone", KOORDINATOR, None), says("mixed", AMOUNTS, None), says("mixed", ALLOCATED, "n:0")),
        ["team/mixed (bound) got n:3, its pod says n:0", "gpu 0 of n was handed out twice: team/lone, team/mixed"],
        id="a whole device in two pods' hands",
    ),
    pytest.param(
        says("mixed", AMOUNTS, told(("gpu", 0, 20, "5Gi"), ("rdma", 0, 30, ""))),
        [
            (
                f"team/mixed (bound) got gpu 3 20 core, {5 * GIB} bytes; rdma 0 30 core, 0 bytes, "
                f"its pod's {AMOUNTS} says gpu 0 20 core, {5 * GIB} bytes; rdma 0 30 core, 0 bytes"
            ),
            "gpu 0 of n was handed out twice: team/lone, team/mixed",
        ],
        id="a share of a device that another pod has whole",
    ),
    pytest.param(
        lease("gpu-n-0", there=False),
        ["lease gpu-n-0 is missing; team/lone/u-lone holds the device"],
        id="lease of a whole device missing",
    ),
    pytest.param(
        lease("gpu-n-2", there=False),
        ["lease gpu-n-2 is missing; team/left/u-left, team/right/u-right holds the device"],
        id="lease of a shared device missing",
    ),
    pytest.param(
        lease("gpu-n-0", holder="team/left/u-left"),
        [
            "lease gpu-n-0 is held by team/left/u-left [], the device by team/lone/u-lone",
            "lease gpu-n-0 is held by team/left/u-left, who holds no device",
        ],
        id="lease in another pod's hands",
    ),
    pytest.param(
        lease("gpu-n-0", holder="somebody else", ours=False),
        ["lease gpu-n-0 is held by somebody else [], the device by team/lone/u-lone"],
        id="lease of a held device in a stranger's hands",
    ),
    pytest.param(
        lease("gpu-n-2", sharers=("team/left/u-left",)),
        [
            (
                "lease gpu-n-2 is held by gpuplane/shares ['team/left/u-left'], "
                "the device by team/left/u-left, team/right/u-right"
            ),
        ],
        id="a sharer is missing in the lease",
    ),
    pytest.param(
        lease("gpu-n-2", holder="team/left/u-left"),
        ["lease gpu-n-2 is shared and held by team/left/u-left"],
        id="shared lease in one pod's name",
    ),
    pytest.param(
        lease("gpu-n-4", holder="team/gone/u-gone", ours=True),
        ["lease gpu-n-4 is held by team/gone/u-gone, who holds no device"],
        id="lease of ours that nobody needs",
    ),
    pytest.param(
        lease("gpu-n-3", sharers=("team/mixed/u-mixed", "team/gone/u-gone")),
        ["lease gpu-n-3 is held by team/gone/u-gone, who holds no device"],
        id="a sharer too many in the lease",
    ),
    pytest.param(
        lease("gpu-n-4", holder="gpuplane/shares", ours=True),
        ["lease gpu-n-4 is held by nobody, who holds no device"],
        id="emptied lease left over",
    ),
]
UNRESTFUL = [
    pytest.param(
        row("left", state="releasing"), ["team/left (releasing) is still releasing"], id="devices on their way back"
    ),
    pytest.param(row("lone", state="held"), ["team/lone (held) is still held"], id="a hold"),
    pytest.param(
        seen("waits", scheduled=""),
        ["team/waits is neither bound nor unschedulable with a reason: nothing"],
        id="nobody looked at the pod",
    ),
    pytest.param(
        seen("waits", scheduled="False SchedulerError extender timed out"),
        ["team/waits is neither bound nor unschedulable with a reason: False SchedulerError extender timed out"],
        id="the scheduler had an error",
    ),
    pytest.param(
        seen("waits", scheduled="False Unschedulable"),
        ["team/waits is neither bound nor unschedulable with a reason: False Unschedulable"],
        id="no reason",
    ),
    pytest.param(
        device(4, stranger=""),
        ["lease gpu-n-4 is held by the stranger somebody else, and gpu 4 of n counts as usable"],
        id="a stranger's lease is not noticed",
    ),
    pytest.param(
        lease("gpu-n-4", there=False),
        ["gpu 4 of n is kept out of use for somebody else, who holds no lease"],
        id="a stranger is gone, and the device not back",
    ),
]


def test_a_sound_picture_has_no_problem() -> None:
    """LEASE-6 shares, mixed types, strangers, ended pods and pods that wait are all in order."""
    assert problems(sound()) == []
    assert unrest(sound()) == []


@pytest.mark.parametrize(("plant", "want"), PLANTED)
def test_each_planted_error_is_named(plant: Callable[[Truth], None], want: list[str]) -> None:
    """LEASE-6 exactly the sentences of what was planted, no others."""
    truth = sound()
    plant(truth)
    assert sorted(problems(truth)) == sorted(want)


@pytest.mark.parametrize(("plant", "want"), UNRESTFUL)
def test_what_is_on_its_way_is_named(plant: Callable[[Truth], None], want: list[str]) -> None:
    """LEASE-6 exactly what is not at rest yet."""
    truth = sound()
    plant(truth)
    assert sorted(unrest(truth)) == sorted(want)


# planted in the real cluster


@contextmanager
def halted(stack: Stack) -> Iterator[sqlite3.Connection]:
    """gpuplane's worker, watch and beat stand still, none of them in the middle of a write; gives a way into the ledger behind its back."""
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
    doors = stack.gpuplane.doors
    done = subprocess.run(
        [sys.executable, "manage.py", "reconcile"],
        cwd=ROOT,
        env=stack.gpuplane.environment(doors.main, doors.extender, doors.webhook),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
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
    """LEASE-6 a lease deleted by hand is taken again; one of ours made by hand goes; a stranger's keeps its device out of use."""
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
            f"lease gpu-planted-leases-{strange} is held by the stranger a-person, and gpu {strange} of planted-leases counts as usable"
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
            (
                "SELECT d.id FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id "
                "WHERE n.name = 'planted-number' AND d.minor = ?"
            ),
            [minor],
        ).fetchone()
        ledger.execute("UPDATE nodes_device SET core_used = 0, memory_used = 0 WHERE id = ?", [was[0]])
        size = 80 * GIB
        assert problems(read(stack)) == [f"gpu {minor} of planted-number says 0 core, 0 bytes; its grants 100, {size}"]
        assert compared(stack) == (
            f"gpu {minor} of planted-number counted 0 core and 0 bytes as used; its holders were given 100 and {size}: corrected\n"
        )
        assert problems(read(stack)) == []


def test_a_planted_annotation_is_seen_and_reported(stack: Stack, namespace: str) -> None:
    """LEASE-6 a bound pod's annotation changed by the administrator, past the webhooks, is seen from outside and reported by gpuplane."""
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
