"""The comparison of groups, reservation pods and kubelets: of a sound picture it says nothing, of a planted error of
each kind the sentence that names it. Pure.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.group_promises import APP, LABEL, RESERVED, Records, group_problems, group_unrest, kubelet_problems
from tests.cluster.truth import AllocationRow, DeviceRow, Grant, GroupRow, PodView, Truth

READY = "group g1 of n (ready)"
Plant = Callable[[Truth], None]


def sound() -> Truth:
    """Node n: `left` and `right` share G0 in g1, `lone` has G1 and G2 in g2, `plain` has G3 by the kubelet."""
    names = ("g1", "g2", "g2", "")
    devices = {at: DeviceRow(at, "n", "gpu", at, f"G{at}", 80, 100, 80, group=name) for at, name in enumerate(names)}

    def holder(name: str, *grants: Grant) -> AllocationRow:
        return AllocationRow(f"id-{name}", "bound", "team", name, f"u-{name}", f"team/{name}/u-{name}", "n", grants)

    def runs(name: str, namespace: str = "team", **labels: str) -> PodView:
        given = {key.replace("_", "-"): value for key, value in labels.items()}
        return PodView(namespace, name, f"u-{name}", "n", "Running", "gpu-scheduler", {}, asks=True, labels=given)

    def reserving(group: str, told: str) -> PodView:
        made = runs(f"pod-{group}", "gpuplane-reservation")
        return replace(made, annotations={RESERVED: told}, labels={"app": APP, LABEL: group})

    def group(name: str, *uuids: str, shared: bool) -> GroupRow:
        place = ("gpuplane-reservation", f"pod-{name}", f"u-pod-{name}")
        return GroupRow(name, "n", "ready", len(uuids), shared, uuids, *place)

    half = Grant(0, "gpu", 0, "G0", 50, 40, whole=False)
    whole = [Grant(at, "gpu", at, f"G{at}", 100, 80, whole=True) for at in range(4)]
    pods = [
        runs("left", runai_gpu_group="g1"),
        runs("right", runai_gpu_group="g1"),
        runs("lone", runai_gpu_group="g2"),
        runs("plain"),
        reserving("g1", "G0"),
        reserving("g2", "G1,G2"),
    ]
    return Truth(
        devices=devices,
        allocations=[
            holder("left", half),
            holder("right", half),
            holder("lone", whole[1], whole[2]),
            holder("plain", whole[3]),
        ],
        pods={one.uid: one for one in pods},
        nodes={"n"},
        groups=[group("g1", "G0", shared=True), group("g2", "G1", "G2", shared=False)],
    )


def record() -> dict[str, tuple[str, ...]]:
    return {"u-pod-g1": ("G0",), "u-pod-g2": ("G1", "G2"), "u-plain": ("G3",)}


def of_group(**columns: Any) -> Plant:
    """Columns of g1."""

    def plant(truth: Truth) -> None:
        truth.groups[0] = replace(truth.groups[0], **columns)

    return plant


def of_pod(name: str, **fields: Any) -> Plant:
    """Fields of a pod."""

    def plant(truth: Truth) -> None:
        truth.pods[f"u-{name}"] = replace(truth.pods[f"u-{name}"], **fields)

    return plant


def of_device(number: int, **columns: Any) -> Plant:
    """Columns of a device."""

    def plant(truth: Truth) -> None:
        truth.devices[number] = replace(truth.devices[number], **columns)

    return plant


def whole_share(truth: Truth) -> None:
    """`right` has the shared GPU whole."""
    row = truth.allocations[1]
    truth.allocations[1] = replace(row, grants=(replace(row.grants[0], whole=True),))


def test_a_sound_picture() -> None:
    assert [*group_problems(sound()), *group_unrest(sound()), *kubelet_problems(sound(), {"n": record()})] == []


@pytest.mark.parametrize(
    ("plant", "want"),
    [
        pytest.param(
            of_device(3, group="lost"), "['G3'] of n name the group lost, which there is not", id="no such group"
        ),
        pytest.param(of_device(0, group=""), f"{READY} asks for 1 GPUs and has []", id="a group without its GPU"),
        pytest.param(of_device(3, group="g1"), f"{READY} asks for 1 GPUs and has ['G0', 'G3']", id="a GPU too many"),
        pytest.param(of_group(uuids=("G9",)), f"{READY} was told ['G9'] and has ['G0']", id="another GPU than told"),
        pytest.param(of_group(uuids=("G1",)), "G1 was told to the groups g1, g2", id="one GPU told twice"),
        pytest.param(of_group(pod_uid="u-gone"), f"{READY} has no reservation pod", id="no reservation pod"),
        pytest.param(of_pod("pod-g1", phase="Failed"), f"{READY} has no reservation pod", id="one that has ended"),
        pytest.param(of_pod("pod-g1", deleted=True), f"{READY} has no reservation pod", id="one that is going"),
        pytest.param(
            of_pod("pod-g1", node="m"),
            f"{READY} has the pod gpuplane-reservation/pod-g1 of group g1 on m",
            id="a pod on another node",
        ),
        pytest.param(
            of_pod("pod-g1", annotations={RESERVED: "G3"}), f"{READY} has ['G0'], its pod tells G3", id="a lie"
        ),
        pytest.param(
            of_pod("left", labels={}),
            "team/left (bound) is on GPUs of the groups ['g1'], its pod names []",
            id="a sharer without its label",
        ),
        pytest.param(
            of_pod("plain", labels={LABEL: "g1"}),
            "team/plain (bound) is on GPUs of the groups [], its pod names ['g1']",
            id="a label without a share",
        ),
        pytest.param(whole_share, f"team/right (bound) has G0 whole, unlike {READY}", id="a shared GPU given whole"),
    ],
)
def test_planted_errors(plant: Plant, want: str) -> None:
    truth = sound()
    plant(truth)
    assert want in group_problems(truth)


@pytest.mark.parametrize(
    ("plant", "want"),
    [
        pytest.param(of_group(state="starting"), "group g1 of n (starting) has not come to rest", id="on its way"),
        pytest.param(
            of_group(pod_name="other"), "reservation pod gpuplane-reservation/pod-g1 has no group", id="an orphan"
        ),
    ],
)
def test_unrest(plant: Plant, want: str) -> None:
    truth = sound()
    plant(truth)
    assert group_unrest(truth) == [want]


@pytest.mark.parametrize(
    ("record_of_n", "want"),
    [
        pytest.param({"u-plain": ("G0",)}, "the kubelet of n gave G0 to 2 pods", id="one GPU to two pods"),
        pytest.param(
            {"u-pod-g1": ("G3",), "u-plain": ()},
            f"{READY} has ['G0'], its kubelet gave its pod ['G3']",
            id="another GPU than the group has",
        ),
        pytest.param(
            {"u-over": ("G9",)}, "the kubelet of n keeps ['G9'] for pod u-over, which is over", id="kept for a pod gone"
        ),
        pytest.param(
            {"u-plain": ("G9",)},
            "the kubelet of n gave ['G9'] to team/plain, the ledger says ['G3']",
            id="a plain pod with another GPU",
        ),
    ],
)
def test_kubelets_that_differ(record_of_n: dict[str, tuple[str, ...]], want: str) -> None:
    records: Records = {"n": {**record(), **record_of_n}}
    assert want in kubelet_problems(sound(), records)
