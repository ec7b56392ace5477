"""Label and field selectors of lists and watches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from simulator.cluster.kinds import Object, Refusal

Test = Callable[[Object], bool]

_BETWEEN: Final = re.compile(r",(?![^(]*\))")
_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
_EQUAL: Final = re.compile(r"([^=!]+?)\s*(!=|==|=)\s*(\S*)")


def matcher(labels: str, fields: str) -> Test:
    """Whether an object is chosen by both. Raises Refusal for what cannot be read."""
    tests = [*(_label_test(term) for term in _terms(labels)), *(_field_test(term) for term in _terms(fields))]
    return lambda item: all(test(item) for test in tests)


def _terms(selector: str) -> Iterator[str]:
    yield from (term.strip() for term in _BETWEEN.split(selector) if term.strip())


def _label_test(term: str) -> Test:
    if found := _SET.fullmatch(term):
        key, within, values = found[1], found[2] == "in", {value.strip() for value in found[3].split(",")}
        return lambda item: (_label(item, key) in values) == within
    if found := _EQUAL.fullmatch(term):
        key, equal, value = found[1], found[2] != "!=", found[3]
        return lambda item: (_label(item, key) == value) == equal
    if term.startswith("!"):
        return lambda item: _label(item, term[1:]) is None
    return lambda item: _label(item, term) is not None


def _label(item: Object, key: str) -> str | None:
    value = (item["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def _field_test(term: str) -> Test:
    found = _EQUAL.fullmatch(term)
    if found is None:
        raise Refusal(400, "BadRequest", f"field selector not understood: {term}")
    way, equal, value = found[1].split("."), found[2] != "!=", found[3]

    def test(item: Object) -> bool:
        at: object = item
        for part in way:
            at = at.get(part) if isinstance(at, dict) else None
        return (str(at or "") == value) == equal

    return test
