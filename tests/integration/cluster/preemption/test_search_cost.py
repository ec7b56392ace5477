"""What looking for a node to be reserved costs: one query a state of the fleet, a share of the time, and who is put off
meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from allocations import fleet
from allocations.ledger.reads import request_of
from allocations.models import Allocation
from allocations.scheduling.preemption import Preemptor, begin
from allocations.scheduling.preemption.nominate import PACE, SearchAllowance
from kube.objects import Pod
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.preemption.conftest import HIGH, LOW, add, ask, preempt, reserved


def test_where_nobody_is_less_important_it_costs_one_query(world: World, django_assert_num_queries: Any) -> None:
    """One a state of the fleet, however many pods are refused in it."""
    add(world, "equal", LOW)
    pod = msgspec.convert(world.server.pods[NAMESPACE, "equal"], Pod)
    request = request_of(Allocation.objects.get(pod_name="a").request)
    picture, now, *_ = fleet.current()
    for expected in (1, 0):
        with django_assert_num_queries(expected):
            begin(Preemptor(pod, LOW, request, own=None), snapshot=picture, nodes=None, now=now)


def test_looking_takes_its_share_of_time_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second at once, a fifth of the time after it; one for whom nobody can go is not looked at again in the same
    state.
    """
    monkeypatch.setattr("allocations.scheduling.preemption.nominate.AT_ONCE_SECONDS", 1.0)
    seconds = [0.0]
    pace = SearchAllowance(clock=lambda: seconds[0])
    for wanted, took in ((True, 0.6), (True, 1.2), (False, 1.0), (False, 2.0), (True, 0.1)):
        began = pace.begin("p")
        assert (began is not None) is wanted
        assert pace.is_put_off("p") is not wanted
        seconds[0] += took
        if began is not None:
            pace.end(began)

    request = request_of(Allocation.objects.get(pod_name="a").request)
    assert not pace.is_fruitless("p", request, ("one",))
    pace.note_fruitless("p", request, ("one",))
    assert pace.is_fruitless("p", request, ("one",))
    assert not pace.is_fruitless("p", request, ("another",))
    pace.note_fruitless("q", request, ("another",))
    assert not pace.is_fruitless("p", request, ("one",))


def test_a_pod_that_was_put_off_gets_no_node_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler offers the node that is reserved for another; the pod's own best node is not known yet."""
    add(world, "first", HIGH)
    add(world, "second", HIGH)
    ask(world, "first", ["n1", "n2"])
    monkeypatch.setattr(PACE, "_left", -1000.0)
    assert ask(world, "second", ["n2"]) == []
    assert preempt(world, "second", {"n1": ["b", "a"]}) == {}
    assert preempt(world, "first", {"n1": ["a"]}) == {"n1": ["a"]}
    monkeypatch.setattr(PACE, "_left", 1000.0)
    assert ask(world, "second", ["n2"]) == []
    assert reserved() == {"first": ("n1", True), "second": ("n2", False)}
    assert world.settled()
