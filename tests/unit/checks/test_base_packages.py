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


def pins(file: str) -> dict[str, str]:
    """Distribution → version, of a lock file."""
    text = (ROOT / "requirements" / file).read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_agents_image_has_the_same_versions() -> None:
    """requirements/agent.txt is a part of base.txt."""
    assert pins("agent.txt").keys() >= {"msgspec", "websockets", "nvidia-ml-py"}
    assert pins("agent.txt").items() <= pins("base.txt").items()


def test_what_runs_in_production_needs_the_base_packages_alone() -> None:
    """A module of a package that only the tests install is as absent as on a machine of production."""
    only_tests = pins("dev.txt").keys() - pins("base.txt").keys()
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
