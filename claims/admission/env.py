"""The env entries that the mutating webhook sets on containers, and the patch that does it.

Invariants: twice gives no second patch; an entry of the user's under one of the names is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from claims.admission.counted import containers_by_path
from claims.dialects.own_keys import field_path
from kube.keys import VISIBLE_DEVICES
from kube.objects import Container, EnvVar, Pod


class EnvEntry(msgspec.Struct, frozen=True):
    """A required env entry: a literal, or else a reference to annotation `key`."""

    name: str
    literal: str | None = None
    key: str = VISIBLE_DEVICES

    def matches(self, entry: EnvVar) -> bool:
        """Whether the entry is equal, with or without the API server's defaults."""
        if self.literal is not None:
            return entry.value == self.literal and not entry.value_from
        reference = (entry.value_from or {}).get("fieldRef")
        return (
            not entry.value
            and len(entry.value_from or {}) == 1
            and isinstance(reference, dict)
            and reference.get("fieldPath") == field_path(self.key)
        )

    def manifest(self) -> dict[str, Any]:
        """The entry of the manifest."""
        if self.literal is not None:
            return {"name": self.name, "value": self.literal}
        return {"name": self.name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field_path(self.key)}}}


def env_patch(
    pod: Pod, entries_of: Callable[[Container], tuple[EnvEntry, ...]], *, managed: Collection[str]
) -> Iterator[dict[str, Any]]:
    """JSONPatch operations after which each container has its entries, and of the `managed` names no others."""
    for path, container in containers_by_path(pod):
        entries = entries_of(container)
        if container.env is not None:
            required = {entry.name: entry for entry in entries}
            yield from _container_patch(container.env, f"{path}/env", required, managed)
        elif entries:
            yield {"op": "add", "path": f"{path}/env", "value": [entry.manifest() for entry in entries]}


def _container_patch(
    env: list[EnvVar], path: str, required: dict[str, EnvEntry], managed: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Replace differing entries, remove duplicates and other managed variables, add missing entries."""
    seen = set()
    surplus = []
    concerned = any(entry.name in required or entry.name in managed for entry in env)  # rarely true
    for index, entry in enumerate(env if concerned else ()):
        if entry.name in seen or (entry.name in managed and entry.name not in required):
            surplus.append(index)
        elif entry.name in required:
            seen.add(entry.name)
            if not required[entry.name].matches(entry):
                yield {"op": "replace", "path": f"{path}/{index}", "value": required[entry.name].manifest()}
    for index in reversed(surplus):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for name, missing in required.items():
        if name not in seen:
            yield {"op": "add", "path": f"{path}/-", "value": missing.manifest()}
