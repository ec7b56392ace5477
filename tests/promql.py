"""Reads PromQL as far as it takes to know which metrics, labels and values an expression names.

Invariants: what is neither a function, an operator, a number nor a label list is taken for a metric, so a misspelt one
is found too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORDS = frozenset(
    [
        "and",
        "or",
        "unless",
        "on",
        "ignoring",
        "by",
        "without",
        "bool",
        "offset",
        "group_left",
        "group_right",
        "absent",
        "avg",
        "count",
        "delta",
        "increase",
        "histogram_quantile",
        "max",
        "max_over_time",
        "min",
        "rate",
        "sum",
        "topk",
        "vector",
        "label_values",
    ]
)
"""Functions and operators that our files use."""
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*,?')
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?")
_SPAN = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")


@dataclass(frozen=True, slots=True)
class Selector:
    """One metric as an expression names it: (label, operator, value) each."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(expression: str) -> Iterator[Selector]:
    """Every metric of an expression."""
    bare = _GROUPING.sub(" ", _SPAN.sub(" ", expression))
    for found in _SELECTOR.finditer(bare):
        word, inside = found[1], found[2] or ""
        if word in WORDS:
            continue
        matchers = tuple((one[1], one[2], one[3]) for one in _MATCHER.finditer(inside))
        assert _MATCHER.sub("", inside).strip() == "", f"{inside} cannot be read"
        yield Selector(word, matchers)


def grouped_by(expression: str) -> set[str]:
    """Labels named by `by`, `on` and their kin."""
    return {name.strip() for found in _GROUPING.finditer(expression) for name in found[2].split(",") if name.strip()}
