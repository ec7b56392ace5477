"""Reads the Procfile."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_LINE = re.compile(r"([A-Za-z0-9_-]+):\s*(.+)")


class BadProcfile(Exception):
    """A line is not `name: command`; the text says which."""


def read(path: Path) -> dict[str, list[str]]:
    """Commands by name, in the order of the file. Raises BadProcfile."""
    commands: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise BadProcfile(f"{path.name}:{number}: not a line of the form `name: command`")
        if found[1] in commands:
            raise BadProcfile(f"{path.name}:{number}: {found[1]} stands there twice")
        commands[found[1]] = shlex.split(found[2])
    return commands
