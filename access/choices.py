"""Roles, scopes of tokens, and what attempts at passwords are counted by."""

from django.db.models import TextChoices


class Role(TextChoices):
    """Viewer reads; operator writes in the namespaces of their teams; admin does everything."""

    VIEWER = "viewer", "viewer"
    OPERATOR = "operator", "operator"
    ADMIN = "admin", "admin"


class TokenScope(TextChoices):
    """What the tokens of an account open: one scope an account, and that of people is always `rest`."""

    REST = "rest", "REST as a user"
    METRICS = "metrics", "metrics"
    EXTENDER = "extender", "the scheduler's paths"
    WEBHOOKS = "webhooks", "the webhooks' paths"
    INVENTORY = "inventory", "inventories of nodes"
    AGENT = "agent", "agent of one node"


class SignInScope(TextChoices):
    """What a row of `SignInCount` counts, by the rules of `access.attempts`."""

    ADDRESS = "address", "failures from an address"
    NAME = "name", "failures of a name"
    PAIR = "pair", "failures of a name from an address"
    KNOWN = "known", "an address from which a name signed in"
    EVENTS = "events", "events of failures that were written"
