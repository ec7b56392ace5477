"""What runs in production needs no package of the tests: `make run` installs those of requirements/base.txt alone."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    "gpuplane.asgi",
    "gpuplane.serve",
    "gpuplane.broker",
    "gpuplane.worker",
    "gpuplane.beat",
    "celery.apps.worker",
    "simulator",
    "agent",
)
PROGRAM = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} in requirements/base.txt", name=name)
sys.meta_path.insert(0, Absent())
import django
django.setup()
import importlib
for name in {modules!r}:
    importlib.import_module(name)
"""


def names(file: str) -> set[str]:
    """Distributions that a lock file names."""
    return {
        re.sub(r"[-_.]+", "-", found).lower()
        for found in re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements" / file).read_text(), re.MULTILINE)
    }


def test_what_runs_in_production_needs_the_base_packages_alone() -> None:
    """A module of a package that only the tests install is as absent as on a machine of production."""
    only_tests = names("dev.txt") - names("base.txt")
    absent = {
        module
        for module, owners in packages_distributions().items()
        if all(re.sub(r"[-_.]+", "-", owner).lower() in only_tests for owner in owners)
    }
    assert {"pytest", "mypy"} <= absent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(absent=sorted(absent), modules=MODULES)],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "gpuplane.settings", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
