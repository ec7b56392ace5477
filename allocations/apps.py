"""Django's handle on the room."""

from django.apps import AppConfig


class AllocationsConfig(AppConfig):
    """Who holds what."""

    name = "allocations"
    default_auto_field = "django.db.models.BigAutoField"
