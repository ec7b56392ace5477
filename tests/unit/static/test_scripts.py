"""Unit tests of the pages' pure modules, by node's own test runner: each `*.test.js` beside this file is a case."""

import subprocess
from pathlib import Path

import pytest

from tests import node

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.rglob("*.test.js"))


@pytest.fixture(scope="module")
def program():
    try:
        return node.executable()
    except node.NoNode as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("script", [pytest.param(path, id=str(path.relative_to(FOLDER))) for path in SCRIPTS])
def test_script(program, script):
    """`node --test` passes, and there was something to test."""
    done = subprocess.run(
        [program, "--test", "--test-reporter=tap", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# tests 0" not in done.stdout
