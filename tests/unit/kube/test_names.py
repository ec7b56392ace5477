from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.names import InvalidName, check_device_uuid, check_label, check_namespace, check_subdomain, check_uid

CASES: list[Any] = [
    (
        check_label,
        ["a", "train-1", "0", "a" * 63],
        ["", "a" * 64, "-a", "a-", "A", "a.b", "a_b", "a\n", "ä", "a b", None, 7],
    ),
    (check_namespace, ["default", "team-a"], ["", "Team", "a/b", "a.b"]),
    (
        check_subdomain,
        ["a", "a.b", "node-1.example", "a" * 253],
        ["", "a..b", ".a", "a.", "a" * 254, "a/b", "A", "a.-b", 1],
    ),
    (
        check_uid,
        ["fa8983dc-bb76-4eeb-8dcc-556fbd44d7ce", "1", "x" * 128, "u_1.2:3"],
        ["", "x" * 129, "a b", "a/b", "a\n", "a\x00", "ü", 5],
    ),
    (
        check_device_uuid,
        ["GPU-98583a5c-c155-9cf6-f955-03c189d3dbfb", "MIG-1", "mlx5_0", "0000:09:00.0", "x" * 128],
        ["", "x" * 129, "a,b", "a b", "a/b", "a;b", "a\n", None],
    ),
]


@pytest.mark.parametrize(
    ("check", "value"),
    [pytest.param(check, value, id=f"{check.__name__} {value[:20]}") for check, good, _ in CASES for value in good],
)
def test_good_names_come_back_unchanged(check, value):
    assert check(value) == value


@pytest.mark.parametrize(
    ("check", "value"),
    [
        pytest.param(check, value, id=f"{check.__name__} {str(value)[:20]!r}")
        for check, _, bad in CASES
        for value in bad
    ],
)
def test_bad_names_are_refused_with_the_rule(check, value):
    with pytest.raises(InvalidName, match=r"^thing must be") as caught:
        check(value, what="thing")
    assert caught.value.rule


@given(st.one_of(st.text(), st.none(), st.integers(), st.binary()))
def test_nothing_raises_anything_else(value):
    for check in (check_label, check_subdomain, check_namespace, check_uid, check_device_uuid):
        with suppress(InvalidName):
            assert check(value) is value
