"""Recordings of machines: what a session on real hardware saw is test data elsewhere.

A recording has one JSON object a line: first `{"machine": …}`, then `{"reading": …}` for each moment, `{"machine": …}`
when it changed, and `{"away": "why"}` where nothing could be read. Invariants: a recording is replayed exactly, and
again from the start after its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from agent.sources import Machine, Reading, Source, SourceAway

LINES_MOST: Final = 100_000


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    machine: Machine | None = None
    reading: Reading | None = None
    away: str = ""


class BadRecording(SourceAway):
    """Not a recording; the text names the line."""


class RecordedSource:
    """Replays a file. Raises BadRecording."""

    def __init__(self, path: Path) -> None:
        self._lines = _read(path)
        self._at = 0
        self._machine = next(line.machine for line in self._lines if line.machine is not None)

    def machine(self) -> Machine:
        """See Source."""
        while self._lines[self._at].machine is not None:
            self._machine = self._lines[self._at].machine or self._machine
            self._step()
        return self._machine

    def read(self, _: Machine, /) -> Reading:
        """See Source."""
        self.machine()
        line = self._lines[self._at]
        self._step()
        if line.reading is None:
            raise SourceAway(line.away)
        return line.reading

    def close(self) -> None:
        """See Source."""

    def _step(self) -> None:
        self._at = (self._at + 1) % len(self._lines)


class Recorder:
    """Records another source to a file."""

    def __init__(self, source: Source, path: Path) -> None:
        self._source = source
        self._file: IO[bytes] = path.open("ab")
        self._last: Machine | None = None

    def machine(self) -> Machine:
        """See Source."""
        with self._recording_away():
            machine = self._source.machine()
        if machine != self._last:
            self._last = machine
            self._write(_Line(machine=machine))
        return machine

    def read(self, machine: Machine, /) -> Reading:
        """See Source."""
        with self._recording_away():
            reading = self._source.read(machine)
        self._write(_Line(reading=reading))
        return reading

    def close(self) -> None:
        """See Source."""
        self._source.close()
        self._file.close()

    @contextmanager
    def _recording_away(self) -> Iterator[None]:
        try:
            yield
        except SourceAway as error:
            self._write(_Line(away=str(error)))
            raise

    def _write(self, line: _Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def _read(path: Path) -> list[_Line]:
    lines = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if number > LINES_MOST:
                    raise BadRecording(f"{path.name} has more than {LINES_MOST} lines")
                lines.append(_line(raw, path, number))
    except OSError as error:
        raise BadRecording(f"{path.name} cannot be read: {error.strerror}") from error
    if not lines or lines[0].machine is None:
        raise BadRecording(f"{path.name} does not begin with a machine")
    if not any(line.reading or line.away for line in lines):
        raise BadRecording(f"{path.name} holds no reading")
    return lines


def _line(raw: bytes, path: Path, number: int) -> _Line:
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadRecording(f"{path.name}, line {number}: {error}") from error
    if sum((line.machine is not None, line.reading is not None, bool(line.away))) != 1:
        raise BadRecording(f"{path.name}, line {number}: one of machine, reading, away")
    return line
