"""Django's handle on the room."""

from django.apps import AppConfig


class AccessConfig(AppConfig):
    """Who may do what."""

    name = "access"
    default_auto_field = "django.db.models.BigAutoField"
