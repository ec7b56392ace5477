"""Shows every process's lines under a coloured name, and writes them to files.

Used by the supervisor. Invariants: `var/log/<name>.log` holds every line; a file larger than LARGEST_BYTES is renamed
to `.1`, so the folder stays bounded; nothing is coloured when the output is no terminal.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from typing import TextIO

LARGEST_BYTES = 20 * 1024 * 1024
COLOURS = {"run": 37, "redis": 31, "web": 36, "worker": 32, "watch": 33, "beat": 35, "simulator": 34}


class Console:
    """One terminal and one folder of log files."""

    def __init__(self, folder: Path, *, out: TextIO | None = None) -> None:
        self._folder = folder
        self._out = sys.stdout if out is None else out
        self._coloured = self._out.isatty() and "NO_COLOR" not in os.environ
        self._files: dict[str, BufferedWriter] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def line(self, name: str, text: str) -> None:
        """Show one line of a process, and write it to its file."""
        self._write(name, text)
        prefix = f"{name:<9} │ "
        if self._coloured:
            prefix = f"\x1b[{COLOURS.get(name, 37)}m{prefix}\x1b[0m"
        self._show(f"{prefix}{text}\n")

    def say(self, event: str, **values: object) -> None:
        """Show a line of the supervisor itself: an event and its values."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.line("run", " ".join([moment, event, *(f"{key}={value}" for key, value in values.items())]))

    def banner(self, lines: list[str]) -> None:
        """Show a framed notice, which is in no file."""
        width = max(len(line) for line in lines)
        frame = [f"╭─{'─' * width}─╮", *(f"│ {line:<{width}} │" for line in lines), f"╰─{'─' * width}─╯"]
        bold, plain = ("\x1b[1m", "\x1b[0m") if self._coloured else ("", "")
        self._show("\n" + "".join(f"{bold}{line}{plain}\n" for line in frame) + "\n")

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _show(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:  # the reader has left; the files go on
            self._out = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the console

    def _write(self, name: str, text: str) -> None:
        file = self._files.get(name)
        if file is None or file.tell() > LARGEST_BYTES:
            file = self._open(name)
        file.write(text.encode("utf-8", "replace") + b"\n")
        file.flush()

    def _open(self, name: str) -> BufferedWriter:
        if name in self._files:
            self._files.pop(name).close()
        path = self._folder / f"{name}.log"
        if path.exists() and path.stat().st_size > LARGEST_BYTES:
            path.replace(path.with_suffix(".log.1"))
        file = path.open("ab")
        self._files[name] = file
        return file
