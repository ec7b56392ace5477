"""What a plan may choose from: the devices that count as free, and the nodes that are candidates."""

from typing import Any

import pytest

from allocations.engine.plan import feasible, plan
from allocations.engine.reasons import GPUS_ALONE, KUBELET_CHOOSES
from allocations.engine.snapshot import DEVICE_PLUGIN
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Joint, Limits, Policy
from tests.builders import GI, HALF, device_id, fleet, minors, node, request, share, told, whole

NATIVE: dict[str, Any] = {"dialect": Dialect.NATIVE}
GPU, NIC = DeviceAsk("gpu", 1), DeviceAsk("rdma", 1)


class TestWhatCountsAsFree:
    def test_its_own_hold_is_free_while_it_is_planned_again(self):
        picture = fleet(node("a", gpus=2, taken=[0, 1]))
        own = {device_id("a", "gpu", minor): (100, 80 * GI) for minor in (0, 1)}
        assert plan(picture, whole(2)).node is None
        assert minors(plan(picture, whole(2), own=own)) == [0, 1]

    def test_part_of_a_device_comes_back(self):
        picture = fleet(node("a", gpus=1, used={0: (100, 80 * GI)}))
        freed = [(device_id("a", "gpu", 0), *HALF)]
        assert plan(picture, share(core=50, ratio=50), freed=freed).node == "a"
        assert plan(picture, share(core=51), freed=freed).node is None
        assert plan(picture, whole(), freed=freed).node is None

    def test_own_and_freed_add_up(self):
        picture = fleet(node("a", gpus=1, used={0: (100, 80 * GI)}))
        device = device_id("a", "gpu", 0)
        assert plan(picture, whole(), own={device: HALF}, freed=[(device, *HALF)]).node == "a"

    def test_two_who_share_a_device_free_it_together(self):
        picture = fleet(node("a", gpus=1, used={0: (100, 80 * GI)}))
        half = (device_id("a", "gpu", 0), *HALF)
        assert plan(picture, whole(), freed=[half]).node is None
        assert plan(picture, whole(), freed=[half, half]).node == "a"

    def test_blocked_devices_are_taken(self):
        picture = fleet(node("a", gpus=2))
        assert minors(plan(picture, whole(), blocked=[device_id("a", "gpu", 0)])) == [1]
        refused = plan(picture, whole(2), blocked=[device_id("a", "gpu", 0)])
        assert [reason.resolvable for _, reason in told(refused).refused()] == [True]

    def test_devices_that_are_gone_are_passed_over(self):
        assert plan(fleet(node("a", gpus=1)), whole(), own={999_999: (100, GI)}, blocked=[999_998]).node == "a"

    def test_the_snapshot_itself_is_never_written(self):
        picture = fleet(node("a", gpus=2, taken=[0]))
        before = picture.core_used.copy(), picture.memory_used.copy(), picture.device_healthy.copy()
        plan(picture, whole(2), own={device_id("a", "gpu", 0): (100, 80 * GI)}, blocked=[device_id("a", "gpu", 1)])
        assert (picture.core_used == before[0]).all()
        assert (picture.memory_used == before[1]).all()
        assert (picture.device_healthy == before[2]).all()


class TestCandidates:
    def test_only_candidates_are_looked_at(self):
        picture = fleet(node("a", gpus=1), node("b", gpus=1), node("c", gpus=1))
        decision = plan(picture, whole(), candidates=[2, 1])
        assert decision.node == "b"
        assert [name for name, _ in feasible(decision, picture)] == ["b", "c"]

    def test_none_at_all(self):
        assert plan(fleet(node("a", gpus=1)), whole(), candidates=[]).summary == "there are no nodes"
        assert plan(fleet(), whole()).node is None

    @pytest.mark.parametrize(
        ("offered", "want", "want_asked_for_rows"),
        [
            pytest.param(["c", "a"], "a", False, id="the best of all"),
            pytest.param(["c", "b"], "b", True, id="not the best of all"),
            pytest.param(["x"], None, True, id="no node of the snapshot"),
        ],
    )
    def test_rows_are_needed_only_where_the_best_of_all_is_not_offered(
        self, offered: list[str], want: str | None, want_asked_for_rows: bool
    ):
        picture = fleet(node("a", gpus=1), node("b", gpus=1), node("c", gpus=1))
        asked_for: list[bool] = []

        def rows() -> list[int]:
            asked_for.append(True)
            return [picture.node_index[name] for name in offered if name in picture.node_index]

        decision = plan(picture, whole(), candidates=rows, offered=offered)
        assert (decision.node, bool(asked_for)) == (want, want_asked_for_rows)

    def test_a_node_where_the_last_hold_ended_unbound_ranks_last(self):
        picture = fleet(node("a", gpus=2, taken=[0]), node("b", gpus=2))
        assert plan(picture, whole(), last=[picture.node_index["a"]]).node == "b"
        assert plan(picture, whole(2), last=[picture.node_index["b"]]).node == "b"

    @pytest.mark.parametrize(
        ("asked", "want_reason", "want_by_kubelet"),
        [
            pytest.param(whole(**NATIVE), "", True, id="whole GPUs of the kubelet's choice"),
            pytest.param(whole(2), "", False, id="whole GPUs by a reservation pod of two"),
            pytest.param(whole(2, policy=Policy.CONTIGUOUS), "", False, id="one island preferred"),
            pytest.param(share(core=10), "", False, id="a share by a reservation pod"),
            pytest.param(
                whole(2, policy=Policy.CONTIGUOUS, policy_strict=True), KUBELET_CHOOSES, False, id="one island required"
            ),
            pytest.param(share(core=10, **NATIVE), KUBELET_CHOOSES, False, id="a share by the kubelet's name"),
            pytest.param(request(NIC), GPUS_ALONE, False, id="a NIC"),
            pytest.param(request(GPU, NIC, joint=Joint(("gpu", "rdma"))), GPUS_ALONE, False, id="joint"),
            pytest.param(
                request(DeviceAsk("gpu", 1, limits=Limits(uuids=("GPU-a-0",)))), KUBELET_CHOOSES, False, id="one UUID"
            ),
        ],
    )
    def test_what_a_device_plugin_node_takes(self, asked: DeviceRequest, want_reason: str, want_by_kubelet: bool):
        """SHARE-2 A node whose kubelet chooses takes any GPUs: all but plain pods by reservation pods."""
        decision = plan(fleet(node("a", gpus=2, mode=DEVICE_PLUGIN)), asked)
        assert (decision.node, decision.by_kubelet) == (None if want_reason else "a", want_by_kubelet)
        if want_reason:
            ((_, reason),) = told(decision).refused()
            assert (reason.text, reason.resolvable) == (want_reason, False)
