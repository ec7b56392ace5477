"""An event before it is a row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from audit.choices import EventKind

LONGEST_NAMESPACE = 63


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event to be written. `actor` is a user name, or a part of gpuplane such as `scheduler`."""

    kind: EventKind
    message: str
    actor: str
    at: datetime
    namespace: str = ""
    name: str = ""
    node: str = ""
    claim: str = ""
    allocation_id: UUID | None = None
    data: Mapping[str, Any] | None = None
    other: str = ""
    """A party of another namespace, never named in `message` or `data`: a holder `namespace/pod/uid`, or any text."""

    @property
    def other_namespace(self) -> str:
        """The namespace of `other`; empty where it names none: then only those who see all namespaces may read it."""
        namespace, slash, _ = self.other.partition("/")
        return namespace if slash and len(namespace) <= LONGEST_NAMESPACE else ""
