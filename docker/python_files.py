"""Collects into a folder what a Python program needs of the system, for an image without a distribution in it.

Run in a build stage as `python3 python_files.py FOLDER PATH…`: the interpreter and its standard library, the shared
libraries that they and the modules below the paths are linked to, the loader, certificates, and a user. The paths are
copied as well. Standard library alone.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

NOT_NEEDED: Final = frozenset(
    [
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "lib2to3",
        "pydoc_data",
        "distutils",
        "curses",
        "dist-packages",
        "site-packages",
        "sqlite3",
        "config-*",
    ]
)
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
USER: Final = "gpuplane:x:10001:10001::/tmp:/usr/sbin/nologin\n"
_LINKED = re.compile(r"(?:=> )?(/\S+) \(0x")


def linked(file: Path) -> set[Path]:
    """The shared libraries of a program or module, the loader among them."""
    # one that is linked to none is no error
    done = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)  # noqa: S603, S607 - of the builder's own PATH
    return {Path(found) for found in _LINKED.findall(done.stdout)}


def copy(file: Path, root: Path) -> None:
    """The file at its real path, and links to it under the names that lead there."""
    real = file.resolve()
    target = root / real.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(real, target)
    named = file.parent.resolve() / file.name
    there = root / named.relative_to("/")
    if named != real and not there.is_symlink():
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(os.path.relpath(real, named.parent))


def main(root: Path, paths: list[Path]) -> None:
    """Fill the folder."""
    for name in ("bin", "lib", "lib64", "sbin"):  # links into usr on a merged system
        if Path("/", name).is_symlink():
            root.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(Path("/", name).readlink())
    library = Path(sysconfig.get_path("stdlib"))
    leave_out = shutil.ignore_patterns(*NOT_NEEDED)
    shutil.copytree(library, root / library.relative_to("/"), ignore=leave_out, symlinks=True)
    for path in paths:
        shutil.copytree(path, root / path.relative_to("/"), ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    interpreter = Path(sys.executable)
    copy(interpreter, root)
    modules = [found for path in (library, *paths) for found in path.rglob("*.so*") if found.is_file()]
    for file in sorted({found for one in (interpreter, *modules) for found in linked(one)}):
        copy(file, root)
    if CERTIFICATES.exists():
        copy(CERTIFICATES, root)
        known = root / Path(ssl.get_default_verify_paths().openssl_cafile).relative_to("/")
        known.parent.mkdir(parents=True, exist_ok=True)
        known.symlink_to(CERTIFICATES)  # else OpenSSL looks into a folder of them, which only Debian's tools fill
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(f"root:x:0:0:root:/:/usr/sbin/nologin\n{USER}")
    (root / "etc/group").write_text("root:x:0:\ngpuplane:x:10001:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    for name in ("proc", "sys", "dev", "var/lib/gpuplane"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir(mode=0o1777, exist_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
