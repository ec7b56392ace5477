"""Functions take few things by position: what belongs together is a value, the rest is named where it is passed."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
APPS = (
    "access",
    "agent",
    "allocations",
    "audit",
    "claims",
    "gpuplane",
    "inference",
    "kube",
    "nodes",
    "simulator",
    "storage",
)
POSITIONAL_MOST = 8
LEDGER_MOST = 10
"""Of a function of the ledger, by position and by name."""


def functions(folder: Path) -> dict[str, ast.arguments]:
    """`path:name` → its parameters."""
    return {
        f"{path.relative_to(ROOT).as_posix()}:{node.name}": node.args
        for path in sorted(folder.rglob("*.py"))
        if "migrations" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_few_parameters_by_position() -> None:
    many = {
        name: count
        for app in APPS
        for name, found in functions(ROOT / app).items()
        if (count := len(found.posonlyargs) + len(found.args)) > POSITIONAL_MOST
    }
    assert many == {}


def test_verbs_of_the_ledger_take_values() -> None:
    many = {
        name: count
        for name, found in functions(ROOT / "allocations" / "ledger").items()
        if (count := len(found.posonlyargs) + len(found.args) + len(found.kwonlyargs)) > LEDGER_MOST
    }
    assert many == {}
