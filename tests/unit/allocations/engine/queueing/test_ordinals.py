"""Ordinals of places in a queue, and texts without them."""

from __future__ import annotations

import pytest

from allocations.engine.queueing.ordinals import ORDINAL, ordinal


@pytest.mark.parametrize(
    ("place", "want"),
    [
        (2, "second"),
        (10, "tenth"),
        (11, "11th"),
        (12, "12th"),
        (21, "21st"),
        (22, "22nd"),
        (103, "103rd"),
        (111, "111th"),
    ],
    ids=str,
)
def test_ordinals(place: int, want: str) -> None:
    assert ordinal(place) == want


def test_every_ordinal_is_recognised() -> None:
    assert [
        place for place in range(1, 1_200) if ORDINAL.sub("#", f"{ordinal(place)} in queue q") != "# in queue q"
    ] == []


def test_a_name_that_holds_one_is_no_ordinal() -> None:
    assert ORDINAL.sub("#", "waits behind others in queue firsthand") == "waits behind others in queue firsthand"
