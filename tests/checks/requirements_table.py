"""docs/requirements.md: every requirement with the tests that prove it.

A test proves a requirement when its docstring starts with the id, or several (`"LEASE-1, LEASE-3 …"`).
Ids and titles come from docs/requirements.toml, the tests from their source, which is parsed and not
imported. An id that does not exist is an error; one without tests is shown as such.
Run as `python -m tests.checks.requirements_table --write` or `--check`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

from tests.checks.tables import write_or_check

ROOT = Path(__file__).resolve().parents[2]
TITLES = ROOT / "docs" / "requirements.toml"
PAGE = ROOT / "docs" / "requirements.md"
AGAIN = "python -m tests.checks.requirements_table --write"
_IDS = re.compile(r"[A-Z]+-\d+(?:(?:,\s*|\s+and\s+|\s+)[A-Z]+-\d+)*")

HEAD = f"""# Requirements and their proofs

Written by `{AGAIN}` from `docs/requirements.toml` and the docstrings of the tests.
"""


class UnknownId(Exception):
    """A test claims to prove what is not required; the text names both."""


def titles() -> dict[str, dict[str, str]]:
    """Area → its title (under "title") and one for each number."""
    with TITLES.open("rb") as file:
        return tomllib.load(file)


def ids_of(docstring: str | None) -> list[str]:
    """The ids that a docstring starts with."""
    found = _IDS.match((docstring or "").lstrip())
    return re.findall(r"[A-Z]+-\d+", found[0]) if found else []


def proofs(folder: Path) -> dict[str, list[str]]:
    """Id → tests as `path::name`, in the order of the files. Raises UnknownId."""
    areas = titles()
    known = {f"{area}-{number}" for area, entries in areas.items() for number in entries if number != "title"}
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        place = path.relative_to(folder.parent).as_posix()
        for name, docstring in _tests(ast.parse(path.read_text(encoding="utf-8"))):
            for each in ids_of(docstring):
                if each.partition("-")[0] not in areas:
                    continue  # prose such as RFC-9457
                if each not in known:
                    raise UnknownId(f"{place}::{name} names {each}, which docs/requirements.toml does not have")
                found[each].append(f"{place}::{name}")
    return found


def _tests(module: ast.Module) -> list[tuple[str, str | None]]:
    named: list[tuple[str, str | None]] = []
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            named.append((node.name, ast.get_docstring(node)))
        elif isinstance(node, ast.ClassDef):
            # A class stands for its tests when its own docstring names the id, as state machines' do.
            named.append((node.name, ast.get_docstring(node)))
            named += [
                (f"{node.name}::{part.name}", ast.get_docstring(part))
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name.startswith("test")
            ]
    return named


def page() -> str:
    """The whole page."""
    proven = proofs(ROOT / "tests")
    parts = [HEAD]
    for area, entries in titles().items():
        numbers = [number for number in entries if number != "title"]
        parts.append(f"\n## {area}: {entries['title']}\n\n| id | what | proven by |\n|---|---|---|\n")
        for number in numbers:
            tests = proven.get(f"{area}-{number}", [])
            shown = "<br>".join(f"`{test}`" for test in tests) or "(no test yet)"
            parts.append(f"| {area}-{number} | {entries[number]} | {shown} |\n")
    return "".join(parts)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser()
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--write", action="store_true")
    either.add_argument("--check", action="store_true")
    given = parser.parse_args()
    try:
        text = page()
    except UnknownId as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return write_or_check(PAGE, text, check=given.check, again=AGAIN)


if __name__ == "__main__":
    sys.exit(main())
