"""Views ask selectors and services of the rooms: no page and no view of REST starts a query of its own.

`Model.objects.none()` says to REST framework which model a view is about, and reads nothing.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = ("gpuplane/pages", "gpuplane/rest")
EXCEPTIONS = {
    "gpuplane/rest/idempotency.py": "answers kept for a repeated request are the plane's own: no room knows of them",
}


def queries(source: str) -> list[int]:
    """Lines that start a query by a model's manager."""
    tree = ast.parse(source)
    named = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "none"}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "objects" and id(node) not in named
    ]


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param("Node.objects.all()", [1], id="a query"),
        pytest.param("class V:\n    queryset = Node.objects.none()", [], id="which model a view is about"),
        pytest.param("node_list()", [], id="a selector"),
    ],
)
def test_a_query_is_found(source: str, want: list[int]) -> None:
    assert queries(source) == want


def test_views_start_no_query() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for place in PLACES
        for path in (ROOT / place).rglob("*.py")
        if (lines := queries(path.read_text(encoding="utf-8")))
    }
    assert found.keys() == EXCEPTIONS.keys()
