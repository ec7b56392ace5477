"""docs/requirements.md: every requirement with the tests that prove it, or marked open.

A test proves a requirement when its docstring starts with the id, or several (`"LEASE-1, LEASE-3 …"`), and proves only
what the id says: one of several parts by its letter (`DEV-10b`), part a by the bare id. Ids, titles and what is open
come from docs/requirements.toml, the tests from their source, which is parsed and not imported. An id that does not
exist is an error; so is one without tests that is not marked open, and one that is marked open and has a test. Run as
`python -m tests.checks.requirements_table --write` or `--check`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.checks.tables import write_or_check

ROOT = Path(__file__).resolve().parents[2]
TITLES = ROOT / "docs" / "requirements.toml"
PAGE = ROOT / "docs" / "requirements.md"
AGAIN = "python -m tests.checks.requirements_table --write"
OPEN: Final = "**open**"
_ID: Final = r"[A-Z]+-\d+(?:[a-z](?![a-z]))?"
_IDS = re.compile(rf"{_ID}(?:(?:,\s*|\s+and\s+|\s+){_ID})*")
_FIRST: Final = "a"

HEAD = f"""# Requirements and their proofs

Written by `{AGAIN}` from `docs/requirements.toml` and
the docstrings of the tests. What no test proves is marked open.
"""


class TableError(Exception):
    """The table and the tests do not agree.

    TableError
    ├── UnknownId   a test claims to prove what is not required; the text names both
    └── Mismatch    something without proof is not marked open, or the other way round; the text has a line for each
    """


class UnknownId(TableError):
    """A test claims to prove what is not required; the text names both."""


class Mismatch(TableError):
    """Something without proof is not marked open, or something open has one."""


@dataclass(frozen=True)
class Part:
    """What one row of the page says.

    `id`: with the letter where the requirement has parts; `heads`: it only stands above its parts.
    """

    id: str
    text: str
    open: bool = False
    heads: bool = False


@dataclass(frozen=True)
class Area:
    """A section of the page."""

    name: str
    title: str
    parts: tuple[Part, ...]


def areas(text: str | None = None) -> tuple[Area, ...]:
    """docs/requirements.toml, or `text` in its form, read and checked. Raises TableError."""
    given = tomllib.loads(TITLES.read_text(encoding="utf-8") if text is None else text)
    return tuple(
        Area(
            name,
            entries["title"],
            tuple(
                part
                for number, entry in entries.items()
                if number != "title"
                for part in _parts(f"{name}-{number}", entry)
            ),
        )
        for name, entries in given.items()
    )


def _parts(requirement: str, entry: str | Mapping[str, Any]) -> Iterator[Part]:
    if isinstance(entry, str):
        yield Part(requirement, entry)
    elif set(entry) == {"open"}:
        yield Part(requirement, entry["open"], open=True)
    elif "text" in entry and _FIRST in entry:
        yield Part(requirement, entry["text"], heads=True)
        for letter, part in entry.items():
            if letter != "text":
                yield from _parts(f"{requirement}{letter}", part)
    else:
        raise TableError(f"{requirement}: give a text, `open`, or `text` with parts from `a` on")


def ids_of(docstring: str | None) -> list[str]:
    """The ids that a docstring starts with."""
    found = _IDS.match((docstring or "").lstrip())
    return re.findall(_ID, found[0]) if found else []


def proofs(folder: Path, known: tuple[Area, ...]) -> dict[str, list[str]]:
    """Id of a part → tests as `path::name`, in the order of the files. Raises UnknownId."""
    parts = {part.id: part for area in known for part in area.parts}
    names = {area.name for area in known}
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        place = path.relative_to(folder.parent).as_posix()
        for name, docstring in _tests(ast.parse(path.read_text(encoding="utf-8"))):
            for each in ids_of(docstring):
                if each.partition("-")[0] not in names:
                    continue  # prose such as RFC-9457
                if each not in parts:
                    raise UnknownId(f"{place}::{name} names {each}, which docs/requirements.toml does not have")
                found[f"{each}{_FIRST}" if parts[each].heads else each].append(f"{place}::{name}")
    return found


def check(known: tuple[Area, ...], proven: Mapping[str, list[str]]) -> None:
    """Raises Mismatch."""
    wrong = []
    for part in (part for area in known for part in area.parts if not part.heads):
        tests = proven.get(part.id, [])
        if part.open and tests:
            wrong.append(f"{part.id} is marked open, and {tests[0]} claims to prove it")
        if not part.open and not tests:
            wrong.append(f"{part.id} has no test and is not marked open")
    if wrong:
        raise Mismatch("\n".join(wrong))


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
    """The whole page. Raises TableError."""
    known = areas()
    proven = proofs(ROOT / "tests", known)
    check(known, proven)
    return written(known, proven)


def written(known: tuple[Area, ...], proven: Mapping[str, list[str]]) -> str:
    """The page of what is known and proven."""
    text = [HEAD]
    for area in known:
        text.append(f"\n## {area.name}: {area.title}\n\n| id | what | proven by |\n|---|---|---|\n")
        for part in area.parts:
            shown = "<br>".join(f"`{test}`" for test in proven.get(part.id, ()))
            if part.open:
                shown = OPEN
            text.append(f"| {part.id} | {part.text} | {shown} |\n")
    return "".join(text)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser()
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--write", action="store_true")
    either.add_argument("--check", action="store_true")
    given = parser.parse_args()
    try:
        text = page()
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return write_or_check(PAGE, text, check=given.check, again=AGAIN)


if __name__ == "__main__":
    sys.exit(main())
