"""One minute of allocations, added up by queue, namespace and model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocations.queue_usage.amounts import Holding, UsageKey, Use, add_up
from claims.queue_tree import REST, Queue, QueueTree, Quota

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
END = START + timedelta(seconds=60)


def queue(name: str, deserved: int, parent: str = "") -> Queue:
    return Queue(name, parent, quotas=(Quota(deserved=deserved),))


def holding(
    queue: str,
    amount: float = 1,
    *,
    namespace: str = "team",
    model: str = "H100",
    since: int = -1000,
    until: int | None = None,
    utilisation: float | None = None,
) -> Holding:
    """`since`, `until`: seconds from the beginning of the minute."""
    end = None if until is None else START + timedelta(seconds=until)
    return Holding(queue, namespace, model, amount, START + timedelta(seconds=since), end, utilisation)


def uses(tree: QueueTree, *holdings: Holding, gpus: int = 8) -> dict[UsageKey, Use]:
    return add_up(tree, {REST: gpus}, holdings, since=START, until=END)


def test_what_was_held() -> None:
    """QUEUE-6 the seconds within the minute times the part of the GPU; used by the utilisation, where it is known."""
    tree = QueueTree([queue("a", 8)])
    found = uses(
        tree,
        holding("a", 1, utilisation=0.5),
        holding("a", 0.5, since=30),
        holding("a", 1, since=-10, until=15, utilisation=1.0),
        holding("a", 1, since=70),
        holding("a", 1, until=-5),
    )
    assert found == {UsageKey("a", "team", "H100"): Use(held=60 + 15 + 15, measured=75, used=45)}


def test_a_parent_has_what_its_children_have() -> None:
    """QUEUE-6 figures of ancestors are their own rows."""
    tree = QueueTree([queue("org", 4), queue("a", 2, "org"), queue("b", 2, "org")])
    found = uses(tree, holding("a"), holding("b", namespace="other"))
    assert found[UsageKey("org", "team", "H100")].held == 60
    assert found[UsageKey("org", "other", "H100")].held == 60


def test_borrowed_and_lent() -> None:
    """QUEUE-6 `a` deserves 4 and holds 6, `b` deserves 4 and holds 1 of a fleet of 8: `b` lends the two."""
    tree = QueueTree([queue("a", 4), queue("b", 4)])
    found = uses(tree, holding("a", 4), holding("a", 2, namespace="other"), holding("b"))
    assert found[UsageKey("a", "team", "H100")].borrowed == pytest.approx(80)
    assert found[UsageKey("a", "other", "H100")].borrowed == pytest.approx(40)
    lent = found[UsageKey("b", "", "H100")]
    assert not lent.held
    assert lent.lent == pytest.approx(120)


def test_what_nobody_deserves_is_borrowed_first() -> None:
    """QUEUE-6 of 10 GPUs 8 are deserved: of three that are borrowed, one is lent by `b`."""
    tree = QueueTree([queue("a", 4), queue("b", 4)])
    found = uses(tree, holding("a", 7), gpus=10)
    assert found[UsageKey("a", "team", "H100")].borrowed == pytest.approx(180)
    assert found[UsageKey("b", "", "H100")].lent == pytest.approx(60)


def test_below_one_parent() -> None:
    """QUEUE-6 children borrow from each other within what their parent deserves; the parent borrows nothing."""
    tree = QueueTree([queue("org", 4), queue("a", 2, "org"), queue("b", 2, "org"), queue("c", 4)])
    found = uses(tree, holding("a", 4))
    assert found[UsageKey("b", "", "H100")].lent == pytest.approx(120)
    assert found[UsageKey("org", "team", "H100")].borrowed == 0
    assert UsageKey("c", "", "H100") not in found


def test_by_model() -> None:
    """QUEUE-6 groups of models are apart from each other."""
    tree = QueueTree([Queue("a", quotas=(Quota(("H100",), 1), Quota(deserved=0))), Queue("b")])
    found = add_up(
        tree,
        {frozenset({"h100"}): 2, REST: 2},
        [holding("a"), holding("a", model="T4")],
        since=START,
        until=END,
    )
    assert found[UsageKey("a", "team", "H100")].borrowed == 0
    assert found[UsageKey("a", "team", "T4")].borrowed == pytest.approx(60)


QUEUES = ("a", "b", "c")


@given(
    deserved=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    held=st.lists(
        st.tuples(st.sampled_from(QUEUES), st.sampled_from(["x", "y"]), st.integers(1, 4), st.integers(0, 59)),
        max_size=12,
    ),
    spare=st.integers(0, 4),
)
def test_every_minute(deserved: list[int], held: list[tuple[str, str, int, int]], spare: int) -> None:
    """QUEUE-6 nobody lends more than what was borrowed, nor more than it left unused; parts add up."""
    tree = QueueTree([queue(name, amount) for name, amount in zip(QUEUES, deserved, strict=True)])
    holdings = [holding(name, amount, namespace=space, since=since) for name, space, amount, since in held]
    found = uses(tree, *holdings, gpus=sum(deserved) + spare)
    borrowed = sum(use.borrowed for use in found.values())
    lent = sum(use.lent for use in found.values())
    assert -1e-6 <= lent <= borrowed + 1e-6
    for name, amount in zip(QUEUES, deserved, strict=True):
        mine = [use for key, use in found.items() if key.queue == name]
        total = sum(use.held for use in mine)
        assert sum(use.borrowed for use in mine) == pytest.approx(max(total - 60 * amount, 0))
        assert sum(use.lent for use in mine) <= max(60 * amount - total, 0) + 1e-6
