"""Writing a generated page of docs/, or checking that the one on disk is what would be written."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path


def write_or_check(path: Path, text: str, *, check: bool, again: str) -> int:
    """Write `text`, or (`check`) print how the file differs and give 1. `again` is the command that writes it."""
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    if present == text:
        return 0
    lines = difflib.unified_diff(present.splitlines(), text.splitlines(), str(path), "generated", n=0, lineterm="")
    sys.stderr.write("\n".join(lines) + f"\n{path} is out of date: run {again}\n")
    return 1
