"""The requirements page counts what docstrings claim, and nothing else."""

from pathlib import Path

import pytest

from tests.checks.requirements_table import (
    HEAD,
    Mismatch,
    TableError,
    UnknownId,
    areas,
    check,
    ids_of,
    page,
    proofs,
    written,
)

TABLE = """
[LEASE]
title = "Locking"
1 = "one"
2.open = "two"
3.text = "three"
3.a = "first"
3.b.open = "second"
3.c = "third"
"""


@pytest.mark.parametrize(
    ("docstring", "want"),
    [
        pytest.param("LEASE-1 the second creator is refused.", ["LEASE-1"], id="one"),
        pytest.param("LEASE-1, LEASE-3 undone.", ["LEASE-1", "LEASE-3"], id="two with a comma"),
        pytest.param("LEASE-1 and DEV-2 both.", ["LEASE-1", "DEV-2"], id="two with and"),
        pytest.param("LEASE-1 LEASE-3 both, KAI #416 is none.", ["LEASE-1", "LEASE-3"], id="two with a space"),
        pytest.param("DEV-10b LEASE-1 a part.", ["DEV-10b", "LEASE-1"], id="a part by its letter"),
        pytest.param("LEASE-1: a colon.", ["LEASE-1"], id="a colon"),
        pytest.param("Proves nothing like LEASE-1.", [], id="not at the start"),
        pytest.param(None, [], id="no docstring"),
    ],
)
def test_ids_of(docstring: str | None, want: list[str]) -> None:
    assert ids_of(docstring) == want


def folder_with(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(text)
    return folder


def test_functions_methods_and_classes_prove(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        'def test_x():\n    "LEASE-1 x."\n\ndef help():\n    "LEASE-1 no test."\n\n'
        'class TestB:\n    "LEASE-2 all of it."\n\n    async def test_y(self):\n        "LEASE-1 y."\n',
    )
    assert proofs(folder, areas(TABLE)) == {
        "LEASE-1": ["tests/test_a.py::test_x", "tests/test_a.py::TestB::test_y"],
        "LEASE-2": ["tests/test_a.py::TestB"],
    }


def test_the_bare_id_of_several_parts_is_part_a(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 'def test_x():\n    "LEASE-3 x."\n\ndef test_y():\n    "LEASE-3c LEASE-3a y."\n')
    assert proofs(folder, areas(TABLE)) == {
        "LEASE-3a": ["tests/test_a.py::test_x", "tests/test_a.py::test_y"],
        "LEASE-3c": ["tests/test_a.py::test_y"],
    }


@pytest.mark.parametrize("name", ["LEASE-99", "LEASE-3d", "LEASE-1a"])
def test_an_id_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path, f'def test_x():\n    "{name} x."\n')
    with pytest.raises(UnknownId, match=name):
        proofs(folder, areas(TABLE))


ALL = {"LEASE-1": ["one"], "LEASE-3a": ["first"], "LEASE-3c": ["third"]}


@pytest.mark.parametrize(
    ("proven", "want"),
    [
        pytest.param(ALL, "", id="what is proven has tests, what is open has none"),
        pytest.param({**ALL, "LEASE-1": []}, "LEASE-1 has no test and is not marked open", id="no test"),
        pytest.param({**ALL, "LEASE-3c": []}, "LEASE-3c has no test and is not marked open", id="a part without test"),
        pytest.param({**ALL, "LEASE-2": ["t"]}, "LEASE-2 is marked open, and t claims to prove it", id="open, tested"),
        pytest.param({**ALL, "LEASE-3b": ["t"]}, "LEASE-3b is marked open, and t claims", id="an open part, tested"),
    ],
)
def test_proven_and_open_agree_with_the_tests(proven: dict[str, list[str]], want: str) -> None:
    if not want:
        check(areas(TABLE), proven)
        return
    with pytest.raises(Mismatch, match=want):
        check(areas(TABLE), proven)


def test_the_page_says_what_is_open() -> None:
    assert written(areas(TABLE), ALL).partition("|---|---|---|\n")[2].splitlines() == [
        "| LEASE-1 | one | `one` |",
        "| LEASE-2 | two | **open** |",
        "| LEASE-3 | three |  |",
        "| LEASE-3a | first | `first` |",
        "| LEASE-3b | second | **open** |",
        "| LEASE-3c | third | `third` |",
    ]


@pytest.mark.parametrize("entry", ['1.a = "a part of nothing"', '1.text = "no parts"', '1.closed = "no such word"'])
def test_an_entry_of_another_form_is_refused(entry: str) -> None:
    with pytest.raises(TableError, match="LEASE-1"):
        areas(f'[LEASE]\ntitle = "Locking"\n{entry}\n')


def test_the_table_agrees_with_the_tests_of_today() -> None:
    """An error of the table or of a docstring is raised here."""
    assert page().startswith(HEAD)
