"""Errors that stop a program before it starts. Not in `settings`, which cannot be imported when one is bad."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CONFIGURATION: Final = 78
"""Exit status of a program that cannot start until somebody changes its settings: EX_CONFIG of sysexits.h."""


class BadSetting(Exception):
    """Variables are missing, do not parse, or name what cannot be used; the text says which, and why."""


@contextmanager
def refusals_end_the_program() -> Iterator[None]:
    """BadSetting becomes its text on stderr and exit status CONFIGURATION: a SystemExit, which Celery passes on."""
    try:
        yield
    except BadSetting as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(CONFIGURATION) from None
