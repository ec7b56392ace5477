"""Pages of docs/ say what the code says."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command

from allocations.choices import State
from allocations.reconcile import garbage_collection
from allocations.scheduling import limits
from gpuplane.management.commands.settings_table import table
from gpuplane.settings.variables import OUTSIDE, VARIABLES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_variable_is_in_the_settings_page() -> None:
    call_command("settings_table", "--check")
    assert all(f"`{variable.name}`" in table() for variable in VARIABLES)


def test_pages_name_no_variable_that_does_not_exist() -> None:
    known = {variable.name for variable in VARIABLES} | OUTSIDE
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    named = {name for page in pages for name in re.findall(r"\bGPUPLANE_[A-Z_]+[A-Z]\b", page.read_text())}
    assert named <= known


def test_the_table_of_states_has_every_state() -> None:
    page = (DOCS / "architecture.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(State.values) <= named


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        pytest.param(limits.RESERVED_LIMIT, "32 s, past", id="reserved"),
        pytest.param(garbage_collection.RELEASING_LIMIT, "| 5 s: collection takes it up again", id="releasing"),
        pytest.param(limits.BIND_DEADLINE, "own deadline of 20 s", id="a bind's deadline"),
    ],
)
def test_documented_limits_are_the_limits(limit: timedelta, words: str) -> None:
    assert f"{int(limit.total_seconds())} s" in words
    assert words in (DOCS / "architecture.md").read_text()


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
