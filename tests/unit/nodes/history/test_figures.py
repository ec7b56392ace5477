"""Figures of a span: means over what was measured, and the parts make the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import COLUMNS
from nodes.history import figures
from nodes.history.figures import Figures, combined, of_moments
from nodes.history.ring import Moment

DEVICES = ("GPU-0", "GPU-1")
UTILISATION = COLUMNS.index("utilisation_percent")
values = st.one_of(st.none(), st.integers(0, 2**44))


def moment(*utilisation: int | None) -> Moment:
    unknown = (None,) * len(utilisation)
    columns = tuple(utilisation if row == UTILISATION else unknown for row in range(len(COLUMNS)))
    return Moment("n1", 1, 0.0, columns)


def test_means_are_over_what_was_measured() -> None:
    """VIEW-1 what is not known counts for nothing, and not as 0."""
    found = of_moments(DEVICES, [moment(10, None), moment(15, None), moment(None, 0)])
    assert found is not None
    assert found.of("GPU-0", "utilisation_percent") == (2, 12.5, 15)
    assert found.of("GPU-1", "utilisation_percent") == (1, 0.0, 0)
    assert found.of("GPU-0", "power_watts") is None
    assert found.of("GPU-9", "utilisation_percent") is None
    assert found.columns.keys() == {"utilisation_percent"}
    assert of_moments(DEVICES, []) is None
    assert of_moments(DEVICES, [moment(None, None)]) is None
    assert of_moments((), [moment()]) is None


@given(
    st.lists(
        st.tuples(*[st.tuples(values, values) for _ in COLUMNS]).map(lambda columns: Moment("n1", 1, 0.0, columns)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_parts_make_the_whole(moments: list[Moment], cut: int) -> None:
    """VIEW-1 minutes make an hour: the same counts and largest values, and means to within what is kept of them."""
    whole = of_moments(DEVICES, moments)
    parts = [part for some in (moments[:cut], moments[cut:]) if (part := of_moments(DEVICES, some)) is not None]
    made = combined(parts)
    assert (whole is None) == (made is None)
    if whole is None or made is None:
        return
    assert figures.unpack(figures.pack(whole)) == whole
    assert whole.columns.keys() == made.columns.keys()
    for name, column in whole.columns.items():
        assert made.columns[name].counts == column.counts
        assert made.columns[name].largest == column.largest
        for one, other in zip(made.columns[name].means, column.means, strict=True):
            assert one == pytest.approx(other, abs=1.01, rel=1e-9)


def test_devices_that_came_and_went() -> None:
    """A GPU that was there for a part of the hour has figures of that part."""
    first, second = of_moments(("GPU-0",), [moment(10)]), of_moments(("GPU-1", "GPU-0"), [moment(50, 30)])
    assert first is not None
    assert second is not None
    found = combined([first, second])
    assert found is not None
    assert found.of("GPU-0", "utilisation_percent") == (2, 20.0, 30)
    assert found.of("GPU-1", "utilisation_percent") == (1, 50.0, 50)
    assert combined([]) is None


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", figures.pack(Figures(DEVICES, {}))[:-4]], ids=["empty", "text", "cut off"]
)
def test_damaged_rows_are_unreadable(body: bytes) -> None:
    with pytest.raises(figures.Unreadable):
        figures.unpack(body)
