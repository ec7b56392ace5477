"""`manage.py simulate FILE --format json|table`: what would happen, on nothing but the file (VIEW-4).

Touches neither database nor cluster; reads the GGUF files that models of the scenario name. A file that cannot be
read ends with a sentence and exit code 1.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import msgspec
from django.core.management.base import BaseCommand, CommandError

from access.errors import BadInput
from allocations.engine.gguf import Header
from allocations.gguf_files import header_of
from allocations.scenario import read_scenario, run_scenario, table_text
from allocations.scenario.text import JSON_BYTES_MOST


class Command(BaseCommand):
    """The command."""

    help = "Place the pods of a scenario file on its nodes and say why, without touching anything."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """FILE and --format."""
        parser.add_argument("file", metavar="FILE", help="the scenario, YAML or JSON; - reads standard input")
        parser.add_argument("--format", choices=("json", "table"), default="table", help="of the answer (table)")

    def handle(self, *args: object, **options: str) -> None:
        """Read, run, print."""
        try:
            scenario = read_scenario(_read(options["file"]))
            result = run_scenario(scenario, headers=_headers_beside(options["file"]))
        except BadInput as error:
            raise CommandError(f"{options['file']}: {error}") from error
        if options["format"] == "json":
            self.stdout.write(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        else:
            self.stdout.write(table_text(result), ending="")


def _headers_beside(name: str) -> Callable[[str], Header]:
    """Reads GGUF files by names that are relative to the scenario's folder, or to the working directory."""
    folder = Path() if name == "-" else Path(name).parent

    def header(file: str) -> Header:
        beside = folder / file
        return header_of(beside if beside.is_file() else Path(file))

    return header


def _read(name: str) -> bytes:
    """At most one byte more than is taken, so that the size is refused and not cut."""
    if name == "-":
        return sys.stdin.buffer.read(JSON_BYTES_MOST + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(JSON_BYTES_MOST + 1)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from error
