"""`manage.py settings_table`: docs/settings.md from the table in gpuplane/settings/variables.py."""

from __future__ import annotations

from pathlib import Path

from gpuplane.management.generated_file import GeneratedFileCommand
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
        rows.append(f"| `{variable.name}` | {variable.kind.label} | {default} | {meaning} |\n")
    return HEAD + "".join(rows)


class Command(GeneratedFileCommand):
    """Write the page, or check it."""

    help = "Write docs/settings.md, or with --check fail when it is not what would be written."
    path = Path("docs/settings.md")

    def content(self) -> str:
        """The page."""
        return table()
