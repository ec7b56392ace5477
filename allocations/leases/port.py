"""The port that both lease implementations serve, and the names and holders of leases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from kube.keys import SHARED_HOLDER

__all__ = ["SHARED_HOLDER", "LeasePort", "LeaseTaken", "LeaseView", "Want", "lease_name"]


def lease_name(type_name: str, node: str, minor: int) -> str:
    """`gpu-<node>-<minor>`, `<type>-<node>-<minor>`."""
    return f"{type_name}-{node}-{minor}"


class Want(msgspec.Struct, frozen=True):
    """One device of one allocation as the leases see it."""

    name: str
    node: str
    device_uuid: str
    whole: bool


class LeaseView(msgspec.Struct, frozen=True):
    """A lease. `sharers` are holder identities, empty for a whole device."""

    name: str
    holder_identity: str
    node: str
    device_uuid: str
    sharers: tuple[str, ...] = ()
    acquired_at: str | None = None


class LeaseTaken(Exception):
    """Somebody else has the lease of a device: `holder`, who is not named in the text, which others may read."""

    def __init__(self, want: Want, holder: str) -> None:
        super().__init__(f"lease {want.name} is held by somebody else")
        self.want = want
        self.holder = holder


class LeasePort(Protocol):
    """Both implementations. Errors of the Kubernetes API pass through as `kube.errors`."""

    def take(self, wants: Sequence[Want], holder: str, *, now: datetime) -> None:
        """Create or join every lease, acquired `now`; idempotent.

        Raises LeaseTaken, with those taken so far left to `drop`.
        """

    def drop(self, wants: Sequence[Want], holder: str) -> None:
        """Delete or leave every lease that is ours; others count as dropped."""

    def all(self) -> Iterator[LeaseView]:
        """Every lease of ours, by name."""

    def named(self, names: Sequence[str]) -> Iterator[LeaseView]:
        """Those of these names that exist, whoever holds them, by name."""
