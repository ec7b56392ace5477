"""How many values JSON may hold, known before any of them is made."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube import bounded
from kube.bounded import SMALL_BYTES, TooManyValues, check_values


def values_in(value: object) -> int:
    """Every value, the outermost too."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(values_in(one) for one in inner)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
        max_leaves=40,
    )
)
def test_the_count_is_never_too_low(value: object) -> None:
    body = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bounded, "SMALL_BYTES", 0)
        with pytest.raises(TooManyValues):
            check_values(body, most=values_in(value) - 1)


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        pytest.param(b"[" + b"1," * (SMALL_BYTES // 2 - 2) + b"1]", True, id="small bodies pass unread"),
        pytest.param(b"[" + b"1," * SMALL_BYTES + b"1]", False, id="numbers"),
        pytest.param(b"[" + b"[]," * SMALL_BYTES + b"1]", False, id="lists"),
        pytest.param(b'{"a":{' + b'"":{},' * SMALL_BYTES + b'"":1}}', False, id="objects"),
        pytest.param(b'{"a":"' + b"x" * 4 * SMALL_BYTES + b'"}', True, id="one long text"),
    ],
)
@pytest.mark.parametrize("raw", [False, True], ids=["bytes", "raw member"])
def test_what_passes(body: bytes, passes: bool, raw: bool) -> None:
    data = msgspec.Raw(body) if raw else body
    if passes:
        check_values(data, most=100_000)
        return
    with pytest.raises(TooManyValues, match="more than 100000 values"):
        check_values(data, most=100_000)
