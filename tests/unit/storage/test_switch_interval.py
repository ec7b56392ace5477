"""How long threads keep the interpreter: short turns while something long runs, and not otherwise."""

import sys
from collections.abc import Iterator

import pytest

from storage.switch_interval import (
    SHORT_SWITCH_INTERVAL,
    SHORT_SWITCH_SECONDS,
    SHORTEST_SWITCH_INTERVAL,
    SHORTEST_SWITCH_SECONDS,
    SWITCH_SECONDS,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_while_anybody_is_within() -> None:
    """The last to leave makes them long again, also where an error ends it."""
    with SHORT_SWITCH_INTERVAL:
        with SHORT_SWITCH_INTERVAL:
            assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    with pytest.raises(ValueError, match="lost"), SHORT_SWITCH_INTERVAL:
        raise ValueError("lost")
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)


def test_the_shortest_is_in_force() -> None:
    """Whoever came first, and until it is left."""
    with SHORTEST_SWITCH_INTERVAL, SHORT_SWITCH_INTERVAL:
        assert sys.getswitchinterval() == pytest.approx(SHORTEST_SWITCH_SECONDS)
    with SHORT_SWITCH_INTERVAL:
        with SHORTEST_SWITCH_INTERVAL:
            assert sys.getswitchinterval() == pytest.approx(SHORTEST_SWITCH_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
