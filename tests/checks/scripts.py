"""Biome for the pages' scripts (lint, format) and styles (lint): `biome.jsonc`. Arguments go to `biome check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import node

ROOT = Path(__file__).resolve().parents[2]
BIOME = ROOT / "node_modules" / "@biomejs" / "biome" / "bin" / "biome"


def command(*arguments: str) -> list[str]:
    """The command line; a warning fails as an error does. Raises NoNode."""
    return [node.executable(), str(BIOME), "check", "--error-on-warnings", *arguments]


def main() -> int:
    """Exit status of Biome."""
    return subprocess.run(command(*sys.argv[1:]), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
