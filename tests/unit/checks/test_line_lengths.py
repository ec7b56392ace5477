"""Lines end at column 120, in whatever ruff and Biome do not format: styles and prose."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LONGEST = 120
FILES = [
    *(ROOT / "static" / "css").glob("*.css"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
]


def prose(path: Path) -> list[tuple[int, str]]:
    """(number, line) of lines that can be broken: no rows of tables, no code, no lines with an address."""
    found, code = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif path.suffix == ".css" or not (code or line.lstrip().startswith("|") or "://" in line):
            found.append((number, line))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_end_at_120(path: Path) -> None:
    long = [f"{path.name}:{number}" for number, line in prose(path) if len(line) > LONGEST]
    assert long == []
