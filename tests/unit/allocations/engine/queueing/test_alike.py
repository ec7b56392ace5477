"""Pods that are alike are decided once: the answer is that of the same pods looked at in turn."""

from __future__ import annotations

from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.queueing.rounds import DecisionInput, QueueDecision, _Round, decide
from allocations.engine.queueing.workloads import Age, Gang, Member, Topology, Workload
from claims.queue_tree import Queue, QueueTree, Quota
from tests.builders import fleet, node, whole

T = TypeVar("T")
REQUESTS = (whole(1), whole(2))
ROWS = (None, (0,), (1,))
RACK = Topology("rack", required=True)
STAR = Gang("bench/star", 1)


def rarely(usual: T, *others: T) -> st.SearchStrategy[T]:
    """One of the others in every sixth place."""
    return st.sampled_from([*[usual] * (5 * len(others)), *others])


@st.composite
def inputs(draw: st.DrawFn) -> DecisionInput:
    """Two small nodes, two queues, and rows of pods and gangs that share their requests; some stand behind a gang."""
    queues = [
        Queue(name, quotas=(Quota(deserved=3, limit=draw(rarely(None, 2, 3))),), strict=draw(rarely(False, True)))
        for name in ("a", "b")
    ]
    waiting = []
    for number in range(draw(st.integers(4, 14))):
        name, age = f"bench/p{number}", Age(undated=False, created="2026-01-01T00:00:00Z", place=number)
        request, rows = draw(st.sampled_from(REQUESTS)), draw(st.sampled_from(ROWS))
        members = tuple(Member(f"{name}-{place}/u", request, age, rows) for place in range(draw(rarely(1, 2))))
        waiting.append(
            Workload(
                name,
                draw(rarely("a", "b")),
                members,
                draw(rarely(0, 1)),
                age,
                preemptible=draw(rarely(True, False)),
                topology=draw(rarely(None, RACK)),
                beside=draw(rarely((), (1,))),
                above=draw(rarely("", STAR.name)),
                borrows_idle=draw(rarely(False, True)),
            )
        )
    age = Age(undated=False, created="2026-01-01T00:00:00Z", place=draw(st.integers(-1, 14)))
    waiting.append(Workload(STAR.name, "a", (Member("bench/star-0/u", draw(st.sampled_from(REQUESTS)), age),), 0, age))
    snapshot = fleet(node("n0", gpus=draw(st.integers(1, 2))), node("n1", gpus=draw(st.integers(1, 2))))
    labels = [{"rack": "x"}, {"rack": "y"}]
    return DecisionInput(QueueTree(queues), snapshot, (), tuple(waiting), {STAR.name: STAR}, labels)


@settings(max_examples=400)
@given(asked=inputs())
def test_alike_pods_are_decided_as_in_turn(asked: DecisionInput) -> None:
    """No shortcut for pods with one request between them changes who goes, or why the others wait."""
    at_once = decide(asked)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_Round, "_refuse_alike", lambda *_: None)
        in_turn = decide(asked)

    assert seen(at_once) == seen(in_turn)


def seen(decision: QueueDecision) -> tuple[object, ...]:
    """What the decision says of each pod."""
    going = [(one.pod, one.decision.node, one.decision.grants, one.waits_for) for one in decision.admissions]
    waiting = {
        name: (why.reason, why.devices, why.decision.summary if why.decision is not None else "")
        for name, why in decision.waiting.items()
    }
    return going, decision.evictions, waiting
