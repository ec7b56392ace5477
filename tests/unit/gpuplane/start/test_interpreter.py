"""How long threads keep the interpreter: short turns while something long runs, and not otherwise."""

import sys
from collections.abc import Iterator

import pytest

from gpuplane.start.interpreter import SHORT_SWITCH_SECONDS, SWITCH_SECONDS, ShortSwitchInterval


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_while_anybody_is_within() -> None:
    """The last to leave makes them long again, also where an error ends it."""
    turns = ShortSwitchInterval()
    with turns:
        with turns:
            assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    with pytest.raises(ValueError, match="lost"), turns:
        raise ValueError("lost")
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
