"""`manage.py settings_table`: docs/settings.md from the table in gpuplane/settings/variables.py."""

from __future__ import annotations

import difflib
from argparse import ArgumentParser

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpuplane.settings.variables import VARIABLES

HEAD = """# Settings

Every setting is an environment variable, read once at start. A value that does not parse, or a `GPUPLANE_` name
that is not listed here, stops the start with one message that names all of them.

This page is written by `manage.py settings_table` from `gpuplane/settings/variables.py`.

| variable | kind | default | meaning |
|---|---|---|---|
"""


def table() -> str:
    """The page."""
    rows = []
    for variable in VARIABLES:
        default = f"`{variable.default}`" if variable.default else "(empty)"
        meaning = variable.meaning.replace("|", "\\|")
        rows.append(f"| `{variable.name}` | {variable.kind} | {default} | {meaning} |\n")
    return HEAD + "".join(rows)


class Command(BaseCommand):
    """Write the page, or check it."""

    help = "Write docs/settings.md, or with --check fail when it is not what would be written."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """`--check`."""
        parser.add_argument("--check", action="store_true")

    def handle(self, *args: object, check: bool, **options: object) -> None:
        """Do it."""
        path = settings.BASE_DIR / "docs" / "settings.md"
        text = table()
        if not check:
            path.write_text(text, encoding="utf-8")
            return
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present != text:
            lines = difflib.unified_diff(
                present.splitlines(), text.splitlines(), "present", "generated", n=0, lineterm=""
            )
            raise CommandError("\n".join([*lines, "docs/settings.md is out of date: run manage.py settings_table"]))
