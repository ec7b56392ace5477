"""The dialects, in the order of their detection, and what follows from their definitions.

A new dialect is a module that creates a `DialectDefinition`, and one line here. Invariants: names are unique; a
resource that two dialects read belongs to the first of them that is detected (`DialectDefinition.detect`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from claims.dialects import gpuclaim, hami, kai, koordinator, native
from claims.dialects.definition import Candidate, DialectDefinition, ReadBack
from claims.dialects.refused import Refused
from kube.keys import ALLOCATED

DIALECTS: Final[tuple[DialectDefinition, ...]] = (
    gpuclaim.DIALECT,
    kai.DIALECT,
    hami.DIALECT,
    native.DIALECT,
    koordinator.DIALECT,
)

BY_NAME: Final[Mapping[str, DialectDefinition]] = {one.name: one for one in DIALECTS}
REQUEST_ANNOTATIONS: Final = frozenset[str]().union(*(one.annotations for one in DIALECTS))
"""A pod with one of these requests devices."""
REQUEST_RESOURCES: Final = {name: dimension for one in DIALECTS for name, dimension in one.resources.items()}
"""Every resource name that any dialect reads → what it counts."""
READ_BACK: Final[Mapping[str, tuple[str, ReadBack]]] = {
    one.read_back.key: (one.name, one.read_back) for one in DIALECTS if one.read_back is not None
}
"""Annotation of another scheduler → its dialect, and how it is read."""
RESULT_SOURCES: Final = frozenset({ALLOCATED, *READ_BACK})
"""A running pod with one of these names its devices."""
GUARDED: Final = frozenset(one.name for one in DIALECTS if one.result_keys)
"""Dialects with result annotations of their own."""
BY_CONTAINER: Final = frozenset(one.name for one in DIALECTS if one.by_container)
BY_PLUGIN: Final = frozenset(one.name for one in DIALECTS if one.by_plugin)
RENUMBERED: Final = frozenset(one.name for one in DIALECTS if one.renumbers)


def only_dialect(candidate: Candidate) -> DialectDefinition | None:
    """The pod's dialect, None for a pod that requests no devices. Raises `Refused` for two."""
    found = detected(candidate)
    if len(found) > 1:
        first, second = found[:2]
        raise Refused(
            "two-dialects",
            f"the pod asks for devices by {first.words} and by {second.words}; ask in one way only",
        )
    return found[0] if found else None


def detected(candidate: Candidate) -> list[DialectDefinition]:
    """All dialects of the pod, in the order of `DIALECTS`."""
    found: list[DialectDefinition] = []
    before: set[str] = set()
    for one in DIALECTS:
        if one.detect(candidate, before):
            found.append(one)
            before.update(one.resources)
    return found
