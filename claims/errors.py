"""Errors of manifests besides their own rules.

access.errors.Conflict
├── ManifestExists      create: there is one of that name
└── ManifestChanged     the object is no longer the one the caller read (uid or resourceVersion)
"""

from access.errors import Conflict


class ManifestExists(Conflict):
    """An object of that name exists."""


class ManifestChanged(Conflict):
    """Somebody else wrote the object meanwhile: read it again."""
