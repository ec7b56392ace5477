"""What runs in production needs no package of the tests: `make run` installs those of requirements/base.txt alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Set as AbstractSet
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

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
            raise ModuleNotFoundError(f"{{name!r}} is in no lock file of this program", name=name)
sys.meta_path.insert(0, Absent())
{preparation}
import importlib
for name in {modules!r}:
    importlib.import_module(name)
"""


def pins(file: str) -> dict[str, str]:
    """Distribution → version, of a lock file."""
    text = (ROOT / "requirements" / file).read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("program", ["agent", "runner"])
def test_images_of_nodes_have_the_same_versions(program: str) -> None:
    """agent.txt and runner.txt are parts of base.txt."""
    file = f"{program}.txt"
    assert pins(file).keys() >= {"msgspec", "structlog", "websockets", "nvidia-ml-py"}
    assert pins(file).items() <= pins("base.txt").items()


@pytest.mark.parametrize(
    ("program", "modules"), [("agent", ("agent.__main__", "agent.reserve")), ("runner", ("runner.__main__",))]
)
def test_programs_of_nodes_need_their_packages_alone(program: str, modules: tuple[str, ...]) -> None:
    """NODE-1 SLOT-4c any package that their own lock file lacks is as absent as from their images."""
    done = started_without(pins("dev.txt").keys() - pins(f"{program}.txt").keys(), modules=modules, preparation="")
    assert done.returncode == 0, done.stderr


def test_what_runs_in_production_needs_the_base_packages_alone() -> None:
    """A module of a package that only the tests install is as absent as on a machine of production."""
    done = started_without(
        pins("dev.txt").keys() - pins("base.txt").keys(),
        modules=MODULES,
        preparation="import django\ndjango.setup()",
        among={"pytest", "mypy"},
    )
    assert done.returncode == 0, done.stderr


def started_without(
    distributions: AbstractSet[str],
    *,
    modules: tuple[str, ...],
    preparation: str,
    among: AbstractSet[str] = frozenset(),
) -> subprocess.CompletedProcess[str]:
    """A Python that imports the modules while those of the distributions, some of which are `among`, are absent."""
    absent = {
        module
        for module, owners in packages_distributions().items()
        if all(re.sub(r"[-_.]+", "-", owner).lower() in distributions for owner in owners)
    }
    assert absent
    assert absent >= among
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(absent=sorted(absent), modules=modules, preparation=preparation)],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "gpuplane.settings", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
