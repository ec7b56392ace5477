"""Opens GGUF files of this machine, for commands that a person runs.

Called by `manage.py estimate` and `manage.py simulate`. REST and the what-if page never come here: whoever sends them a
scenario must not learn which files the server has. Invariants: only regular files are opened; whatever is wrong is a
`GgufInvalid` whose text names the file.
"""

from __future__ import annotations

from pathlib import Path

from allocations.engine.gguf import GgufInvalid, Header, read_header


def header_of(path: Path) -> Header:
    """The header of a file. Raises GgufInvalid."""
    try:
        return _read(path)
    except OSError as error:
        raise GgufInvalid(f"{path}: {error.strerror or error}", rule="file") from error
    except GgufInvalid as error:
        raise GgufInvalid(f"{path}: {error}", field=error.field, rule=error.rule) from error


def _read(path: Path) -> Header:
    if not path.is_file():  # a pipe would never end
        raise GgufInvalid("it is not a file" if path.exists() else "there is no such file", rule="file")
    with path.open("rb", buffering=0) as file:
        return read_header(file)
