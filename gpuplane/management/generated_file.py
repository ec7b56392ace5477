"""A command that writes a generated file, or with `--check` fails when it is out of date."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError


class GeneratedFileCommand(BaseCommand, ABC):
    """`path`: of the file, from the repository's root."""

    requires_system_checks = ()
    path: Path

    @abstractmethod
    def content(self) -> str:
        """The file's content."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """`--check`."""
        parser.add_argument("--check", action="store_true")

    def handle(self, *_: object, check: bool, **_options: object) -> None:
        """Write the file, or check it."""
        path = settings.BASE_DIR / self.path
        text = self.content()
        if not check:
            path.write_text(text, encoding="utf-8")
            return
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present != text:
            lines = difflib.unified_diff(
                present.splitlines(), text.splitlines(), "present", "generated", n=0, lineterm=""
            )
            command = self.__module__.rpartition(".")[2]
            raise CommandError("\n".join([*lines, f"{self.path} is out of date: run manage.py {command}"]))
