"""Django's handle on the room."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    """What happened."""

    name = "audit"
    default_auto_field = "django.db.models.BigAutoField"
