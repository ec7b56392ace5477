"""A file with every write of the store, so that the cluster survives a restart as one with an etcd does.

One JSON line for each write; the file is written anew when it has grown. Invariants: a process that is killed loses
at most the line it was writing; a line that cannot be read ends the journal there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import structlog

from simulator.cluster.kinds import Object
from simulator.cluster.store import Change, Store

LARGEST_BYTES: Final = 16 << 20
"""Beyond the size right after it was written anew."""

log = structlog.get_logger(__name__)


class Line(msgspec.Struct, rename={"version": "v", "kind": "k", "type": "t", "object": "o"}):
    """One write. `kind`: `<plural>.<group>`."""

    version: int
    kind: str
    type: str
    object: Object


class Journal:
    """The journal of one store, open for appending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: Store | None = None
        self._file: BinaryIO | None = None
        self._largest = LARGEST_BYTES
        path.parent.mkdir(parents=True, exist_ok=True)

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[Store]:
        """The store of the journal at that path, which goes on there until the end of the context."""
        journal = cls(path)
        store = Store(written=journal.append)
        found: dict[tuple[str, str, str], Object] = {}
        version = 0
        for line in journal.lines():
            meta, version = line.object["metadata"], line.version
            key = (line.kind, meta.get("namespace", ""), meta["name"])
            found.pop(key, None)
            if line.type != "DELETED":
                found[key] = line.object
        store.load(((key[0], item) for key, item in found.items()), version=version)
        journal._store = store
        journal.rewrite()
        try:
            yield store
        finally:
            journal.close()

    def close(self) -> None:
        """Close the file; further changes are not written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def lines(self) -> list[Line]:
        """What the file has."""
        found: list[Line] = []
        try:
            with self._path.open("rb") as file:
                found.extend(msgspec.json.decode(text, type=Line) for text in file)
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            log.warning("cluster.journal_ends", line=len(found) + 1, why=str(error))
        return found

    def append(self, change: Change) -> None:
        """Write a change, and the file anew where it has grown."""
        if self._file is None:
            return
        line = Line(change.version, change.kind.qualified, change.type, change.object)
        self._file.write(msgspec.json.encode(line) + b"\n")
        if self._file.tell() > self._largest:
            self.rewrite()

    def rewrite(self) -> None:
        """Write the file anew: one line for each object."""
        assert self._store is not None
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            for kind, item in self._store.everything():
                line = Line(self._store.version, kind.qualified, "ADDED", item)
                file.write(msgspec.json.encode(line) + b"\n")
        fresh.replace(self._path)
        self.close()
        self._file = self._path.open("ab", buffering=0)
        self._largest = self._file.tell() + LARGEST_BYTES
