"""Fair shares: named cases, and what holds of every division."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.queueing.fair_share import Claimant, Demand, divide, fair_shares
from claims.queue_tree import REST, Name, Queue, QueueTree, Quota


def claimant(
    deserved: float = 0, most: float = 100, weight: float = 1, priority: int = 100, age: int = 0, *, whole: bool = True
) -> Claimant:
    """In short."""
    return Claimant(Fraction(str(deserved)), Fraction(str(most)), Fraction(str(weight)), priority, age, whole)


@pytest.mark.parametrize(
    ("amount", "claimants", "shares"),
    [
        pytest.param(8, [claimant(2), claimant(2)], [4, 4], id="what is left, by equal weights"),
        pytest.param(8, [claimant(2), claimant(2, most=3)], [5, 3], id="no more than requested"),
        pytest.param(8, [claimant(weight=3), claimant(weight=1)], [6, 2], id="by weight"),
        pytest.param(8, [claimant(weight=0), claimant(weight=1)], [0, 8], id="weight 0 gets nothing above deserved"),
        pytest.param(8, [claimant(3, weight=0), claimant()], [3, 5], id="weight 0 gets what it deserves"),
        pytest.param(8, [claimant(), claimant(priority=200)], [0, 8], id="the higher priority first"),
        pytest.param(8, [claimant(), claimant(priority=200, most=5)], [3, 5], id="the lower priority gets the rest"),
        pytest.param(4, [claimant(8, most=3), claimant(8, most=3)], [3, 3], id="what is due is not cut"),
        pytest.param(7, [claimant(age=1), claimant(age=0)], [3, 4], id="the odd GPU goes to the older"),
        pytest.param(
            7,
            [claimant(weight=5), claimant(weight=3), claimant(weight=2)],
            [4, 2, 1],
            id="to the largest fraction lost",
        ),
        pytest.param(
            5, [claimant(whole=False), claimant()], [Fraction(5, 2), 2], id="shares are exact for pods of shares"
        ),
        pytest.param(
            10,
            [claimant(priority=200, most=2.5), claimant(age=1), claimant(age=2)],
            [2, 4, 4],
            id="what higher priorities lose goes to where the amount ran out",
        ),
    ],
)
def test_divide(amount: int, claimants: list[Claimant], shares: list[Fraction]) -> None:
    assert divide(Fraction(amount), claimants) == shares


AMOUNTS = st.fractions(min_value=0, max_value=20, max_denominator=4)
CLAIMANTS = st.lists(
    st.builds(
        Claimant,
        deserved=AMOUNTS,
        most=AMOUNTS,
        weight=st.fractions(min_value=0, max_value=5, max_denominator=3),
        priority=st.integers(0, 2),
        age=st.integers(0, 3),
        whole=st.booleans(),
    ),
    max_size=6,
)


@given(amount=st.integers(0, 40).map(Fraction), claimants=CLAIMANTS)
def test_every_division(amount: Fraction, claimants: list[Claimant]) -> None:
    """Nobody below what is due or above the most; not more than there is; nothing left while somebody could have it."""
    shares = divide(amount, claimants)
    due = sum((one.due for one in claimants), Fraction(0))
    for share, one in zip(shares, claimants, strict=True):
        assert one.due <= share <= max(one.most, one.due)
        if one.whole:
            assert (share - one.due).denominator == 1
        if one.weight == 0:
            assert share == one.due
    assert sum(shares) <= max(amount, due)
    left = amount - sum(shares)
    for share, one in zip(shares, claimants, strict=True):
        if one.weight > 0 and not one.whole:
            assert share == one.most or left < len(claimants)
        if one.weight > 0 and one.whole and left >= len(claimants):
            assert share + 1 > one.most


@given(amount=st.integers(0, 40).map(Fraction), claimants=CLAIMANTS)
def test_a_lower_priority_gets_nothing_before_the_higher_is_satisfied(
    amount: Fraction, claimants: list[Claimant]
) -> None:
    exact = [Claimant(one.deserved, one.most, one.weight, one.priority, one.age, whole=False) for one in claimants]
    shares = divide(amount, exact)
    for share, one in zip(shares, exact, strict=True):
        if one.weight > 0 and share < one.most:
            for other_share, other in zip(shares, exact, strict=True):
                if other.priority < one.priority:
                    assert other_share == other.due


def test_shares_go_down_the_tree() -> None:
    """QUEUE-2 a parent's share is what its children divide, and its limit bounds what they ask for together."""
    tree = QueueTree(
        [
            Queue("org", quotas=(Quota(limit=Fraction(4)),)),
            Queue("a", parent="org", quotas=(Quota(weight=Fraction(3)),)),
            Queue("b", parent="org"),
            Queue("c"),
        ]
    )
    demands = {Name(name, REST): Demand(Fraction(8)) for name in ("a", "b", "c")}
    shares = fair_shares(tree, {REST: Fraction(16)}, demands)
    found = {name.queue: share for name, share in shares.items()}
    assert found == {"org": 4, "a": 3, "b": 1, "c": 8, "default": 0}
