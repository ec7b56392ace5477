"""Errors of claims besides the rules of the manifest.

access.errors.Conflict
├── ClaimExists      create: there is one of that name
└── ClaimChanged     the object is no longer the one the caller read (uid or resourceVersion)
"""

from access.errors import Conflict


class ClaimExists(Conflict):
    """A claim of that name exists in the namespace."""


class ClaimChanged(Conflict):
    """Somebody else wrote the claim meanwhile: read it again."""
