"""The comparison itself: of a sound picture it says nothing, of a planted error of each kind exactly the sentence that
names it.

Pure: errors in the real cluster are planted by `test_planted`.
"""

from collections.abc import Callable

import pytest

from tests.cluster.invariants import ALLOCATED, AMOUNTS, CHOSEN_BY, KOORDINATOR, VISIBLE, problems, unrest
from tests.cluster.planting import (
    BIG,
    GIB,
    all_of,
    device,
    first_grant,
    lease,
    no_pod,
    no_row,
    orphans,
    overfull,
    row,
    says,
    second_row,
    seen,
    sound,
    told,
)
from tests.cluster.truth import Truth

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
            (
                f"team/left (bound) got gpu 2 whole, {10 * GIB} bytes, its pod's {AMOUNTS} says gpu 2 50 core,"
                f" {10 * GIB} bytes"
            ),
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
        says("left", CHOSEN_BY, "kubelet"),
        ["team/left (bound) was left to the kubelet, and its pod says n:2"],
        id="left to the kubelet, and told all the same",
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
            (
                f"team/left (bound) got gpu 2 50 core, {10 * GIB} bytes, its pod's {AMOUNTS} says gpu 2 51 core, "
                f"{10 * GIB} bytes"
            )
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


def test_a_sound_snapshot_has_no_problem() -> None:
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
