"""What the images are made of, and how their programs start: nobody's root, on files that they cannot change."""

import re
import subprocess

import pytest

from gpuplane.errors import CONFIGURATION
from gpuplane.run import procfile
from tests.cluster.controlplane.program import ROOT
from tests.images.container import environment, words
from tests.images.tools import Image

NOT_INSIDE = re.compile(r"credentials\.json|secret-key|\.sqlite3|\.pem$|\.key$|^\.git$|^var$|^tests$")


def run(image: Image, *command: str, **own: str) -> subprocess.CompletedProcess[str]:
    """A program of the image that ends by itself."""
    return subprocess.run(
        [*words(image), *command],
        env=environment(image, own),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_is_nobody_and_changes_nothing(image: Image) -> None:
    """Its user is not root, and its files are read-only but for the folders that the chart mounts."""
    told = run(
        image, "python", "-c", "import os, pathlib; print(os.getuid(), os.getgid()); pathlib.Path('/tmp/a').touch()"
    )
    assert (told.stdout, told.returncode) == ("10001 10001\n", 0), told.stderr
    refused = run(image, "python", "-c", "import pathlib; pathlib.Path('/opt/gpuplane/a').touch()")
    assert "Read-only file system" in refused.stderr


def test_nothing_that_builds_is_inside(image: Image) -> None:
    """No compiler, no installer, no cache and no test; nothing of a developer's folder."""
    for program in ("gcc", "cc", "make", "pip", "npm", "node"):
        assert not list(image.root.glob(f"usr/bin/{program}")), program
        assert not list(image.root.glob(f"opt/gpuplane/*/bin/{program}*")), program
    assert not list(image.root.glob("var/lib/apt/lists/*Packages*"))
    assert not list(image.root.glob("root/.cache/*"))
    own = [path.name for path in (image.root / "opt/gpuplane/app").iterdir()]
    assert [name for name in own if NOT_INSIDE.search(name)] == []


def test_labels(image: Image) -> None:
    """What the image specification calls them."""
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.title"] == image.name
    assert {f"org.opencontainers.image.{name}" for name in ("description", "version", "revision")} <= labels.keys()


def test_the_agents_image_is_small(images: dict[str, Image]) -> None:
    """120 MB at most: it is on every node."""
    assert images["gpuplane-agent"].size <= 120e6


def test_the_agent_starts(images: dict[str, Image]) -> None:
    """TEL-1 on nothing but what is inside, the driver's bindings and certificates among it."""
    image = images["gpuplane-agent"]
    helped = run(image, "python", "-m", "agent", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "--checkpoint" in helped.stdout
    imported = "import pynvml, ssl; print(ssl.create_default_context().cert_store_stats()['x509_ca'] > 50)"
    assert run(image, "python", "-c", imported).stdout == "True\n"


def test_a_reservation_pods_program_starts(images: dict[str, Image]) -> None:
    """SHARE-3 and says in a sentence what its pod lacks."""
    said = run(images["gpuplane-agent"], "python", "-m", "agent.reserve")
    assert said.returncode == 1
    assert "missing or invalid in the environment: POD_NAME" in said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr


@pytest.mark.parametrize("module", ["gpuplane.serve", "gpuplane.celery", "runner", "simulator", "agent.program"])
def test_the_programs_of_the_main_image_are_whole(images: dict[str, Image], module: str) -> None:
    """Each is there with all that it imports."""
    code = f"import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'gpuplane.settings'; import {module}"
    done = run(images["gpuplane"], "python", "-c", code, GPUPLANE_EMBEDDED="1")
    assert done.returncode == 0, done.stderr


def test_files_that_code_reads(images: dict[str, Image]) -> None:
    """Templates, the pages' files with their packages, and the definitions of resources."""
    app = images["gpuplane"].root / "opt/gpuplane/app"
    assert list((app / "docker/helm/gpuplane/crds").glob("*.yaml"))
    assert (app / "static/vendor/htmx.min.js").stat().st_size > 10_000
    assert (app / "templates").is_dir()
    assert not (app / "node_modules").exists()


def test_bootstrap_serves(images: dict[str, Image]) -> None:
    """The chart's first command, on files that it cannot change: the database is made in the data folder."""
    done = run(images["gpuplane"], "python", "manage.py", "bootstrap", GPUPLANE_EMBEDDED="1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


PROGRAMS = [
    ["python", "manage.py", "bootstrap"],
    *(
        command
        for name, command in procfile.read(ROOT / "Procfile").items()
        if name in {"web", "worker", "watch", "beat"}
    ),
]


@pytest.mark.parametrize("command", PROGRAMS, ids=["bootstrap", "web", "worker", "watch", "beat"])
def test_missing_settings_are_named(images: dict[str, Image], command: list[str]) -> None:
    """One sentence and exit status 78."""
    missing = run(images["gpuplane"], *command)
    names = "GPUPLANE_DATABASE_URL and GPUPLANE_REDIS_URL"
    want = f"settings cannot be read: {names} must be set where GPUPLANE_EMBEDDED is 0, as in the images\n"
    assert (missing.returncode, missing.stdout + missing.stderr) == (CONFIGURATION, want)


# a data folder of the image itself, all of which is read-only, and servers that are away
UNWRITABLE = {
    "GPUPLANE_DATABASE_URL": "postgres://a:b@127.0.0.1:1/c",
    "GPUPLANE_REDIS_URL": "redis://127.0.0.1:1/0",
    "GPUPLANE_SECRET_KEY": "key",
    "GPUPLANE_DATA_DIR": "/opt/gpuplane/data",
}


@pytest.mark.parametrize("command", PROGRAMS[:-1], ids=["bootstrap", "web", "worker", "watch"])
def test_a_data_folder_that_cannot_be_written(images: dict[str, Image], command: list[str]) -> None:
    """One sentence and exit status 78 as well."""
    refused = run(images["gpuplane"], *command, **UNWRITABLE)
    said = "GPUPLANE_DATA_DIR=/opt/gpuplane/data cannot be written to: Read-only file system\n"
    assert (refused.returncode, refused.stdout + refused.stderr) == (CONFIGURATION, said)


def test_beat_writes_no_file(images: dict[str, Image]) -> None:
    """What it must know stands in the database and in Redis, for which it waits; a data folder is nothing to it."""
    image = images["gpuplane"]
    program = subprocess.Popen(
        [*words(image), *PROGRAMS[-1]], env=environment(image, UNWRITABLE), stderr=subprocess.PIPE, text=True
    )
    assert program.stderr is not None
    try:
        told = program.stderr.readline()
    finally:
        program.terminate()
        program.communicate(timeout=60)
    assert "Connection refused.. Trying again in" in told
