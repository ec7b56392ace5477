"""Applies the JSONPatch (RFC 6902) of a mutating webhook to a pod: `add`, `replace`, `remove` and `test`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any


class BadPatch(Exception):
    """An operation that does not apply to the object."""


def apply_patch(document: Mapping[str, Any], patch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The patched copy. Raises BadPatch."""
    result: Any = copy.deepcopy(dict(document))
    for operation in patch:
        parts = _parts(operation.get("path"))
        if not parts:
            raise BadPatch("the whole object cannot be patched")
        parent: Any = result
        for part in parts[:-1]:
            parent = _child(parent, part)
        _apply(parent, parts[-1], operation)
    return dict(result)


def _parts(path: object) -> list[str]:
    """The parts of a JSON Pointer (RFC 6901)."""
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise BadPatch(f"no JSON Pointer: {path!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _child(parent: Any, part: str) -> Any:
    if isinstance(parent, dict) and part in parent:
        return parent[part]
    if isinstance(parent, list) and part.isdecimal() and int(part) < len(parent):
        return parent[int(part)]
    raise BadPatch(f"nothing at {part!r}")


def _apply(parent: Any, last: str, operation: Mapping[str, Any]) -> None:
    kind = operation.get("op")
    value = copy.deepcopy(operation.get("value"))
    if kind == "add" and isinstance(parent, dict):
        parent[last] = value
    elif kind == "add" and isinstance(parent, list):
        if last != "-" and not (last.isdecimal() and int(last) <= len(parent)):
            raise BadPatch(f"no place {last!r} in a list of {len(parent)}")
        parent.insert(len(parent) if last == "-" else int(last), value)
    elif kind in ("replace", "remove", "test"):
        present = _child(parent, last)
        key: Any = int(last) if isinstance(parent, list) else last
        if kind == "replace":
            parent[key] = value
        elif kind == "remove":
            del parent[key]
        elif present != value:
            raise BadPatch(f"test failed at {last!r}")
    else:
        raise BadPatch(f"cannot {kind!r} at {last!r}")
