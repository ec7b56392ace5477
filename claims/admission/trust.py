"""Who may write which result annotation.

Invariants: our keys are written only by gpuplane's ServiceAccounts, another dialect's also by that dialect's scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from claims.dialects.own_keys import CONTAINER_STARTS
from claims.dialects.registry import DIALECTS
from claims.dialects.write_back import AMOUNTS
from kube.keys import ALLOCATED, ATTEMPT, CHOSEN_BY, ISOLATION_MEMORY, ISOLATION_THREADS, VISIBLE_DEVICES
from kube.objects import ObjectMeta

OWN: Final = "gpuplane"
_OWN_KEYS: Final = (ALLOCATED, VISIBLE_DEVICES, ATTEMPT, CHOSEN_BY, AMOUNTS, ISOLATION_THREADS, ISOLATION_MEMORY)
RESULTS: Final = dict.fromkeys(_OWN_KEYS, OWN) | {
    key: dialect.name for dialect in DIALECTS for key in dialect.result_keys
}
STARTS: Final = (
    *((start, OWN) for start in CONTAINER_STARTS),
    *((start, one.name) for one in DIALECTS for start in one.result_starts),
)
FRAMES: Final = tuple((*frame, one.name) for one in DIALECTS for frame in one.result_frames)


class Trust(msgspec.Struct, frozen=True):
    """Trusted users, by `userInfo.username`."""

    own: frozenset[str] = frozenset()
    """gpuplane's ServiceAccounts (`system:serviceaccount:<namespace>:<name>`)."""
    schedulers: Mapping[str, frozenset[str]] = {}
    """Dialect (of `registry.GUARDED`) → its scheduler's users."""

    def is_own(self, username: str) -> bool:
        """Whether the user is gpuplane."""
        return username in self.own

    def is_scheduler(self, dialect: str, username: str) -> bool:
        """Whether the user is the scheduler of that dialect."""
        return username in self.schedulers.get(dialect, frozenset())

    def may_place(self, username: str) -> bool:
        """Whether the user may create a pod with devices on a node, as KAI does to reserve GPUs."""
        return self.is_own(username) or any(username in users for users in self.schedulers.values())

    def may_write(self, key: str, username: str) -> bool:
        """Whether the user may write the annotation or label; any user may unless it is a result."""
        dialect = result_dialect(key)
        return dialect is None or self.is_own(username) or self.is_scheduler(dialect, username)


def result_dialect(key: str) -> str | None:
    """The dialect of a result annotation or label, None for other keys."""
    dialect = RESULTS.get(key)
    if dialect is not None:
        return dialect
    for start, name in STARTS:
        if key.startswith(start):
            return name
    return next((name for start, end, name in FRAMES if key.startswith(start) and key.endswith(end)), None)


def forbidden_changes(old: ObjectMeta, new: ObjectMeta, *, trust: Trust, username: str) -> list[str]:
    """Result keys that differ between the two and that the user may not write, sorted."""
    changed: set[str] = set()
    for before, after in ((old.annotations or {}, new.annotations or {}), (old.labels or {}, new.labels or {})):
        changed.update(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return sorted(key for key in changed if not trust.may_write(key, username))
