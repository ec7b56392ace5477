"""YAML and JSON text to plain values, hostile text included."""

import re
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from access.errors import BadInput, TooLarge
from allocations.scenario.text import read_text

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("a: 1\nb: [x, 2.5, true, null, ~]\n", {"a": 1, "b": ["x", 2.5, True, None, None]}, id="block"),
        pytest.param('{"a": {"b": 1e3}}', {"a": {"b": 1000.0}}, id="JSON"),
        pytest.param("{a: 1, b: {c: d}}", {"a": 1, "b": {"c": "d"}}, id="flow YAML"),
        pytest.param("pcie: 0000:09", {"pcie": "0000:09"}, id="no sexagesimal numbers"),
        pytest.param("a: 2024-01-01T00:00:00Z", {"a": "2024-01-01T00:00:00Z"}, id="no dates"),
        pytest.param("a: no\nb: 'true'", {"a": "no", "b": "true"}, id="no is text, quoted is text"),
        pytest.param("1: a\ntrue: b", {"1": "a", "true": "b"}, id="keys are text"),
        pytest.param("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}, id="alias"),
        pytest.param(
            "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}, id="merge"
        ),
        pytest.param("---\na: 1\n", {"a": 1}, id="one document"),
        pytest.param(b"\xef\xbb\xbfa: 1", {"a": 1}, id="byte order mark"),
        pytest.param("a: |\n  x\n  y\n", {"a": "x\ny\n"}, id="block text"),
    ],
)
def test_read(text, want):
    assert read_text(text) == want


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 200_000, id="nested flow"),
        pytest.param("- " * 200_000, id="nested block"),
        pytest.param("{a: " * 50_000, id="nested mappings"),
        pytest.param('{"a":' * 100_000, id="nested JSON"),
        pytest.param("a: [1", id="not closed"),
        pytest.param("a: 1\n---\nb: 2\n", id="two documents"),
        pytest.param("a: !!python/object/apply:os.system [x]", id="a tag that makes objects"),
        pytest.param("a: &x [*x]", id="an alias inside itself"),
        pytest.param("a: *x", id="an alias to nothing"),
        pytest.param("? [a]\n: b", id="a list for a key"),
        pytest.param("a: 1\n\tb: 2", id="tabs"),
        pytest.param(b"a: \xff\xfe", id="not UTF-8"),
        pytest.param("a: \x00", id="control characters"),
    ],
)
def test_refused(text):
    with pytest.raises(BadInput):
        read_text(text)


def test_aliases_are_counted_as_written_out():
    with pytest.raises(TooLarge):
        read_text(BOMB)


def test_size():
    with pytest.raises(TooLarge):
        read_text("a: " + "x" * (9 << 20))
    with pytest.raises(TooLarge):
        read_text(b" " * (33 << 20))


# YAML 1.2 and the API server's own reader take 1e3 for a number; the writer below, of YAML 1.1, leaves such a text
# without quotes.
TEXT = st.text(st.characters(codec="utf-8"), max_size=6).filter(
    lambda text: not re.fullmatch(r"[-+]?[0-9_]+[eE][-+]?[0-9]+", text)
)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text("abc <", min_size=1, max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_what_a_yaml_writer_writes_is_read_back(value):
    assert read_text(yaml.safe_dump({"value": value})) == {"value": value}


@given(st.one_of(st.text(), st.binary()))
def test_nothing_but_bad_input_is_raised(text):
    with suppress(BadInput):
        read_text(text)
