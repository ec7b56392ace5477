"""The order of waiting requests: for any number of them, tokens and priorities."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from inference.dispatch.order import Waiting, in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
SOME = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1)), max_size=20)


def waiting(some: list[tuple[int, int]]) -> list[Waiting]:
    """Token and priority of each, in the order in which they arrived."""
    return [
        Waiting(
            id=uuid.UUID(int=place),
            model="chat",
            lora="",
            priority=priority,
            token=f"t{token}",
            arrived_at=START + timedelta(seconds=place),
        )
        for place, (token, priority) in enumerate(some)
    ]


@given(some=SOME, served=st.dictionaries(st.sampled_from(["t0", "t1", "t2", "t3"]), st.integers(0, 9)))
def test_nobody_is_lost_or_overtaken_unfairly(some: list[tuple[int, int]], served: dict[str, int]) -> None:
    """SLOT-9 a higher priority first; within one a token's requests as they came, and never two of one token while
    another one that has more requests left had none between.
    """
    given_in = waiting(some)
    ordered = in_turn(given_in, {token: START + timedelta(seconds=at) for token, at in served.items()})
    assert sorted(one.id for one in ordered) == [one.id for one in given_in]
    assert [one.priority for one in ordered] == sorted((one.priority for one in ordered), reverse=True)
    for priority in {one.priority for one in ordered}:
        tokens = [one.token for one in ordered if one.priority == priority]
        for token in set(tokens):
            own = [one.id for one in ordered if (one.priority, one.token) == (priority, token)]
            assert own == sorted(own)
            places = [place for place, one in enumerate(tokens) if one == token]
            for turn, place in enumerate(places):
                before = tokens[:place]
                assert all(before.count(other) <= turn + 1 for other in set(tokens) - {token})


@given(some=SOME)
def test_the_order_does_not_depend_on_that_of_the_rows(some: list[tuple[int, int]]) -> None:
    """SLOT-9"""
    rows = waiting(some)
    assert in_turn(rows[::-1], {}) == in_turn(rows, {})


def test_who_was_served_last_is_last() -> None:
    """SLOT-9"""
    rows = waiting([(0, 0), (1, 0), (2, 0)])
    served = {"t0": START + timedelta(seconds=9), "t1": START}
    assert [one.token for one in in_turn(rows, served)] == ["t2", "t1", "t0"]
