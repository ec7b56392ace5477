"""Names the source files that have grown past 400 lines: the place to look for a seam. Information, no verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 400
SOURCES = ("*.py", "static/js/*.js", "static/css/*.css", "templates/*.html")


def main() -> int:
    """Print one line a file, largest first."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SOURCES],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        print("file sizes: not a git checkout, not looked at")
        return 0
    lengths = [
        (len(path.read_bytes().splitlines()), path) for path in map(Path, listed.stdout.split()) if path.is_file()
    ]
    long = sorted(((length, path) for length, path in lengths if length > LIMIT), reverse=True)
    print(f"file sizes: {len(long)} of {len(lengths)} files have more than {LIMIT} lines")
    for length, path in long:
        print(f"  {length:5} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
