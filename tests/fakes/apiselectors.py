"""Label and field selectors of the stand-in API server, for lists and watches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes.apikinds import ApiFault, Object


def matcher(labels: str, fields: str) -> Callable[[Object], bool]:
    """Equality, inequality, existence and `in (…)` of label selectors; equality of field selectors."""
    tests = [*(_label_test(part) for part in _split(labels)), *(_field_test(part) for part in _split(fields))]
    return lambda item: all(test(item) for test in tests)


def _split(selector: str) -> Iterator[str]:
    yield from (part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip())


def _label_test(term: str) -> Callable[[Object], bool]:
    def value(item: Object, key: str) -> str | None:
        return (item["metadata"].get("labels") or {}).get(key)

    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        key, word, choices = match[1], match[2], {c.strip() for c in match[3].split(",")}
        return lambda item: (value(item, key) in choices) == (word == "in")
    if match := re.fullmatch(r"([^=!]+?)\s*(!=|==|=)\s*(\S*)", term):
        key, sign, want = match[1], match[2], match[3]
        return lambda item: (value(item, key) == want) == (sign != "!=")
    if term.startswith("!"):
        return lambda item: value(item, term[1:]) is None
    return lambda item: value(item, term) is not None


def _field_test(term: str) -> Callable[[Object], bool]:
    match = re.fullmatch(r"([^=!]+)(!=|==|=)(\S*)", term)
    if not match or match[1] not in (
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "status.phase",
        "spec.unschedulable",
        "involvedObject.uid",
        "involvedObject.kind",
        "reason",
    ):
        raise ApiFault(400, "BadRequest", f"field label not supported: {term}")
    way, sign, want = match[1].split("."), match[2], match[3]

    def test(item: Object) -> bool:
        at: Any = item
        for part in way:
            at = (at or {}).get(part, "")
        return (str(at) == want) == (sign != "!=")

    return test
