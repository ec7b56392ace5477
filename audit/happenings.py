"""What an event is before it is a row: the value that services write and the feed tells."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from audit.choices import Kind

LONGEST_NAMESPACE = 63


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One event to be written. `actor` is a user name, or a part of gpuplane such as `scheduler`."""

    kind: Kind
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
    """Somebody of another namespace who is concerned: a holder `namespace/pod/uid`, or whatever names them. Never in `message` or `data`."""

    @property
    def other_namespace(self) -> str:
        """The namespace in which `other` is, empty where it names none: then only those who see all are told."""
        namespace, slash, _ = self.other.partition("/")
        return namespace if slash and len(namespace) <= LONGEST_NAMESPACE else ""
