"""Roles, and what attempts at passwords are counted by."""

from django.db.models import TextChoices


class Role(TextChoices):
    """Viewer reads; operator writes in the namespaces of their teams; admin does everything."""

    VIEWER = "viewer", "viewer"
    OPERATOR = "operator", "operator"
    ADMIN = "admin", "admin"


class SignInScope(TextChoices):
    """What a row of `SignInCount` counts; the rules are those of `access.attempts`."""

    ADDRESS = "address", "failures from an address"
    NAME = "name", "failures of a name"
    PAIR = "pair", "failures of a name from an address"
    KNOWN = "known", "an address from which a name signed in"
    EVENTS = "events", "events of failures that were written"
