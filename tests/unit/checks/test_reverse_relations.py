"""Who holds the key of a relation reads it: no query of a room goes up by the other end of a foreign key.

import-linter sees imports alone. A model of `nodes` gets an attribute for each foreign key that `allocations` has to
it, and a query by that attribute knows the room above as well as an import would.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from django.apps import apps

ROOT = Path(__file__).parents[3]
FLOORS = {"storage": 0, "audit": 1, "access": 2, "claims": 3, "nodes": 3, "allocations": 4, "inference": 5}
READS = frozenset(
    {"Avg", "Count", "F", "Max", "Min", "OuterRef", "Prefetch", "Sum", "defer", "only", "order_by", "prefetch_related",
     "select_related", "values", "values_list"}
)  # fmt: skip
"""Calls whose texts name columns and relations."""


def reversed_above(room: str) -> frozenset[str]:
    """Names by which models that the room may know lead to the tables of rooms above it, or beside it."""
    names = set()
    for model in apps.get_models():
        at = FLOORS.get(model._meta.app_label, 0)
        if at > FLOORS[room] or (at == FLOORS[room] and model._meta.app_label != room):
            continue
        for relation in model._meta.related_objects:
            owner = relation.related_model._meta.app_label
            if owner != room and FLOORS.get(owner, -1) >= FLOORS[room] and not relation.hidden:
                names |= {relation.get_accessor_name() or "", relation.name}
    return frozenset(names - {""})


def followed(source: str, names: frozenset[str]) -> set[str]:
    """Which of the names a module follows: in a lookup (`grants__live`), in a call that reads, or as an attribute."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg:
            found |= names & (set(node.arg.split("__")) if "__" in node.arg else set())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__" in node.value:
            found |= names & set(node.value.removeprefix("-").split("__"))
        elif isinstance(node, ast.Attribute):
            found |= names & {node.attr}
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in READS:
                found |= names & {one.value for one in node.args if isinstance(one, ast.Constant)}
    return found


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param("Device.objects.filter(grants__live=True)", {"grants"}, id="a lookup"),
        pytest.param("Q(**{'devices__grants__live': True})", {"grants"}, id="a lookup as text"),
        pytest.param("claims.annotate(n=Count('allocations'))", {"allocations"}, id="a count"),
        pytest.param("nodes.prefetch_related('allocations')", {"allocations"}, id="fetched along"),
        pytest.param("node.allocations.all()", {"allocations"}, id="an attribute"),
        pytest.param("GROUPS = {'allocations': 1}", set(), id="a word"),
        pytest.param("Device.objects.filter(node__name='n1')", set(), id="the way down"),
    ],
)
def test_a_relation_that_is_followed_is_found(source: str, want: set[str]) -> None:
    assert followed(source, frozenset({"grants", "allocations"})) == want


def test_the_relations_to_the_ledger_are_known() -> None:
    assert {"grants", "allocations"} <= reversed_above("nodes")
    assert "allocations" in reversed_above("claims")


def test_no_query_goes_up_by_the_other_end_of_a_foreign_key() -> None:
    wrong = {
        (path.relative_to(ROOT).as_posix(), name)
        for room in FLOORS
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts
        for name in followed(path.read_text(encoding="utf-8"), reversed_above(room))
    }
    assert wrong == set()
