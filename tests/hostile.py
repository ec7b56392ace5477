"""Bodies that no cluster would send: ways to spoil a good one. Shared by the tests of the cluster's endpoints."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NUL = "a\x00b"
LONG = "x" * 400

TEXTS = (
    "",
    " ",
    NUL,
    LONG,
    "x" * 64,
    "A b",
    "../../etc",
    "a/b",
    "-a",
    "Ü",
    "\U0001f600" * 70,
    "1e400",
    "-1",
    "NaN",
    "9" * 30,
    "1" * 5000,
    "50m",
    "16GB",
    "%s",
    "{}",
    "null",
    "line\nbreak",
)
"""Texts where names, uids and quantities belong."""

NASTY = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from([None, True, 0, -1, 2**63, -(2**70), 0.5, 1e308]),
    st.sampled_from([[], {}, [None], [[]], [{}], {"a": None}, {"metadata": None}, {"items": [5]}, ["n1", 5], [1, 2]]),
    st.text(max_size=20),
)
"""Values where others belong."""

RAW_TOKENS = (
    b"1e400",
    b"-1e400",
    b"NaN",
    b"Infinity",
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\xff\xfe"',
    b'"\x01"',
    b"9" * 5000,
    b"9" * 30,
    b"01",
    b"[" * 100_000 + b"]" * 100_000,
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"a":1,"a":2}',
    b"tru",
    b"",
)
"""JSON, or what is none, that only bytes can say."""

_MARK = "\u2603MARK\u2603"


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value, the value itself first."""
    yield here
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in steps:
        yield from paths(child, (*here, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What stands at the place."""
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at the place."""
    if not path:
        return new
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return changed


def take_out(value: Any, path: tuple[Any, ...]) -> Any:
    """A copy without what stands at the place."""
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def with_token(value: Any, path: tuple[Any, ...], token: bytes) -> bytes:
    """The body with raw bytes at the place."""
    text = json.dumps(put(value, path, _MARK)).encode()
    return text.replace(json.dumps(_MARK).encode(), token)


@st.composite
def spoiled(draw: st.DrawFn, good: Any) -> bytes:
    """A good body with up to three things wrong (most often a text), or cut, or with stray bytes."""
    value = good
    for _ in range(draw(st.integers(0, 3))):
        places = list(paths(value))
        texts = [path for path in places if isinstance(at(value, path), str)]
        path = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["text", "text", "value", "out"]))
        if how == "text" and texts:
            value = put(value, draw(st.sampled_from(texts)), draw(st.sampled_from(TEXTS)))
        elif how == "out" and path:
            value = take_out(value, path)
        else:
            value = put(value, path, draw(NASTY))
    body = json.dumps(value).encode()
    how = draw(st.sampled_from(["as it is"] * 6 + ["token", "cut", "stray"]))
    if how == "token":
        return with_token(value, draw(st.sampled_from(list(paths(value)))), draw(st.sampled_from(RAW_TOKENS)))
    if how == "cut":
        return body[: draw(st.integers(0, len(body)))]
    if how == "stray":
        place = draw(st.integers(0, len(body)))
        return body[:place] + draw(st.binary(min_size=1, max_size=4)) + body[place:]
    return body
