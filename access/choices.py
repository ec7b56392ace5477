"""Roles."""

from django.db.models import TextChoices


class Role(TextChoices):
    """Viewer reads; operator writes in the namespaces of their teams; admin does everything."""

    VIEWER = "viewer", "viewer"
    OPERATOR = "operator", "operator"
    ADMIN = "admin", "admin"
