"""Who may write which result annotation (DESIGN §3, Who may say what).

Read by the verdicts of this package. Kept true: our own keys are for gpuplane's ServiceAccount alone, another
dialect's for that dialect's scheduler as well, and nobody else sets, changes or removes any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from claims.dialects.own_keys import CONTAINER_KEYS
from claims.dialects.write_back import AMOUNTS
from kube.keys import (
    ALLOCATED,
    ATTEMPT,
    CHOSEN_BY,
    HAMI_ALLOCATED,
    HAMI_NODE,
    HAMI_TO_ALLOCATE,
    KAI_GPU_GROUP_LABEL,
    KAI_RESERVATION,
    KOORDINATOR_ALLOCATED,
    VISIBLE_DEVICES,
)
from kube.objects import ObjectMeta

OWN: Final = "gpuplane"
_RESULTS: Final = {
    ALLOCATED: OWN,
    VISIBLE_DEVICES: OWN,
    ATTEMPT: OWN,
    CHOSEN_BY: OWN,
    AMOUNTS: OWN,
    KOORDINATOR_ALLOCATED: "koordinator",
    KAI_RESERVATION: "kai",
    KAI_GPU_GROUP_LABEL: "kai",
    HAMI_NODE: "hami",
    HAMI_ALLOCATED: "hami",
    HAMI_TO_ALLOCATE: "hami",
}
_HAMI: Final = "hami.io/"
# HAMi's users write some hami.io/ annotations themselves (scheduler policies), so only its results are guarded.
_HAMI_STARTS: Final = ("vgpu-", "bind-")
_HAMI_ENDS: Final = ("-devices-allocated", "-devices-to-allocate")


class Trust(msgspec.Struct, frozen=True):
    """Whose word counts. Names are those of `userInfo.username`."""

    own: frozenset[str] = frozenset()
    """gpuplane's ServiceAccounts (`system:serviceaccount:<namespace>:<name>`)."""
    schedulers: Mapping[str, frozenset[str]] = {}
    """Dialect (`koordinator`, `kai`, `hami`) → its scheduler's users."""

    def is_own(self, username: str) -> bool:
        """Whether the requester is gpuplane itself."""
        return username in self.own

    def is_scheduler(self, dialect: str, username: str) -> bool:
        """Whether the requester is the scheduler of that dialect."""
        return username in self.schedulers.get(dialect, frozenset())

    def may_place(self, username: str) -> bool:
        """Whether the requester may create a pod with devices on a node: gpuplane, or a scheduler (KAI reserves GPUs by such pods)."""
        return self.is_own(username) or any(username in users for users in self.schedulers.values())

    def may_write(self, key: str, username: str) -> bool:
        """Whether the requester may set the annotation or label; everyone may where it is no result."""
        dialect = result_dialect(key)
        return dialect is None or self.is_own(username) or self.is_scheduler(dialect, username)


def result_dialect(key: str) -> str | None:
    """The dialect whose result an annotation or label is, None where it is none."""
    dialect = _RESULTS.get(key)
    if dialect is not None:
        return dialect
    if key.startswith(CONTAINER_KEYS):
        return OWN
    if key.startswith(f"{KAI_GPU_GROUP_LABEL}/"):
        return "kai"
    if key.startswith(_HAMI):
        name = key.removeprefix(_HAMI)
        if name.startswith(_HAMI_STARTS) or name.endswith(_HAMI_ENDS):
            return "hami"
    return None


def forbidden_changes(old: ObjectMeta, new: ObjectMeta, *, trust: Trust, username: str) -> list[str]:
    """Result keys that differ between the two and that the requester may not write, sorted."""
    changed: set[str] = set()
    for before, after in ((old.annotations or {}, new.annotations or {}), (old.labels or {}, new.labels or {})):
        changed.update(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return sorted(key for key in changed if not trust.may_write(key, username))
