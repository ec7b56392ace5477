"""The requirements page counts what docstrings claim, and nothing else."""

from pathlib import Path

import pytest

from tests.checks.requirements_table import UnknownId, ids_of, proofs


@pytest.mark.parametrize(
    ("docstring", "want"),
    [
        pytest.param("LEASE-1 the second creator is refused.", ["LEASE-1"], id="one"),
        pytest.param("LEASE-1, LEASE-3 undone.", ["LEASE-1", "LEASE-3"], id="two with a comma"),
        pytest.param("LEASE-1 and DEV-2 both.", ["LEASE-1", "DEV-2"], id="two with and"),
        pytest.param("LEASE-1 LEASE-3 both, KAI #416 is none.", ["LEASE-1", "LEASE-3"], id="two with a space"),
        pytest.param("Proves nothing like LEASE-1.", [], id="not at the start"),
        pytest.param(None, [], id="no docstring"),
    ],
)
def test_ids_of(docstring: str | None, want: list[str]) -> None:
    assert ids_of(docstring) == want


def test_functions_methods_and_classes_prove(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        'def test_x():\n    "LEASE-1 x."\n\ndef help():\n    "LEASE-1 no test."\n\n'
        'class TestB:\n    "LEASE-2 all of it."\n\n    async def test_y(self):\n        "LEASE-1 y."\n'
    )
    assert proofs(folder) == {
        "LEASE-1": ["tests/test_a.py::test_x", "tests/test_a.py::TestB::test_y"],
        "LEASE-2": ["tests/test_a.py::TestB"],
    }


def test_an_id_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text('def test_x():\n    "LEASE-99 x."\n')
    with pytest.raises(UnknownId, match="LEASE-99"):
        proofs(folder)
